"""The output of gossamerctl --json, for every command and from real daemons, compared with
tools/ctl/gossamerctl.schema.json and docs/reference/gossamerctl.md: a member that is missing, of another type, or not in the
schema fails. Exit statuses are checked, too.
"""

import copy
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Dict, List, Set

import jsonschema
import numpy as np

from support import BUILD, JOB, PATIENCE_S, Node, SystemTest, gossamerctl, start_program, wait_until

SOURCE = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((SOURCE / "tools/ctl/gossamerctl.schema.json").read_text())
DOCUMENT = (SOURCE / "docs/reference/gossamerctl.md").read_text()
# These words have subcommands.
GROUPS = {"authority", "key", "job", "cluster"}
# These print no JSON of their own: other programs print.
WITHOUT_JSON = {"config", "run", "cluster run"}
NO_NODE = "0" * 32


def closed(schema: Any) -> Any:
    """The schema without members that it does not name: such a member is an error here, and none for users of the
    schema with a later version."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(part) for key, part in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        made["additionalProperties"] = False
    return made


def check(command: str, answer: Any) -> None:
    schema = {**closed(SCHEMA["commands"][command]), "$defs": closed(SCHEMA["$defs"])}
    jsonschema.Draft202012Validator(schema).validate(answer)


def subcommands(*of: str) -> List[str]:
    text = gossamerctl(BUILD, *of, "--help").stdout
    return re.findall(r"^  (\w[\w-]*) ", text[text.index("Subcommands:") :], re.MULTILINE)


class Json(SystemTest):
    def print_json(self, node: Node, *arguments: str) -> Dict[str, Any]:
        """The command as the schema names it: its first words that are not options."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            tool = subprocess.Popen(
                [BUILD / "bin" / "gossamerctl", "--socket", node.control_socket, "--json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            self.addCleanup(tool.kill)
            # A checkpoint waits for the clients, so they must step.
            self.step_until(lambda: tool.poll() is not None, f"gossamerctl {' '.join(arguments)} has ended")
            out.seek(0)
            said = out.read()
            err.seek(0)
            self.assertEqual(tool.returncode, 0, (arguments, said, err.read()))
        self.assertTrue(said.endswith("\n"))
        command = " ".join(arguments[:2]) if arguments[0] in GROUPS else arguments[0]
        for line in said.splitlines():
            answer = json.loads(line)
            check(command, answer)
        self.seen.add(command)
        return answer

    def setUp(self) -> None:
        super().setUp()
        self.seen: Set[str] = set()

    def own_key(self, name: str) -> Node:
        """A node with a key file of its own, because keys change."""
        path = self.folder / name / "state" / "cluster.key"
        node = self.cluster.add(name, {"overlay": {"cluster_key_file": str(path), "peers": []}})
        node.start()
        return node

    def test_each_command_prints_what_the_schema_says(self) -> None:
        first, second = self.own_key("node-1"), self.own_key("node-2")
        line = self.print_json(first, "invite", "--address", first.address)["invitation"]
        self.assertEqual(self.print_json(second, "join", line)["state"], "joined")
        self.wait_for_links([first, second])
        clients = [self.attach(node, np.full(3000, float(index))) for index, node in enumerate((first, second))]
        self.step_until(lambda: all(client.job()["exchanges"] > 10 for client in clients), "both have exchanged")
        wait_until(lambda: bool(first.jobs()[0]["partners"]), PATIENCE_S, "each knows the other")
        status = self.print_json(first, "status")["node"]
        self.assertEqual(status["name"], "node-1")
        self.assertEqual(self.print_json(first, "peers")["peers"][0]["name"], "node-2")
        self.assertTrue(self.print_json(first, "members")["members"][0]["linked"])
        job = self.print_json(first, "jobs")["jobs"][0]
        self.assertEqual(job["job"], JOB)
        self.assertGreater(job["partners"][0]["exchanges"], 0)
        self.assertEqual(len(job["processes"]), 1)
        (process,) = self.print_json(first, "clients")["clients"]
        self.assertEqual((process["job"], process["pid"]), (JOB, os.getpid()))
        self.print_json(first, "gpus")
        self.print_json(first, "top", "--frames", "2", "--interval", "0.1")
        self.print_json(first, "explain", "--seconds", "0.1")
        self.print_json(first, "explain", "node-2", "--seconds", "0.1")
        self.print_json(first, "key", "list")
        made = self.print_json(first, "key", "rotate")["fingerprint"]
        wait_until(
            lambda: all(len(self.print_json(node, "key", "list")["keys"]) == 2 for node in (first, second)),
            PATIENCE_S,
            "both hold the new key",
        )
        keys = self.print_json(first, "key", "list")["keys"]
        (old,) = [key["fingerprint"] for key in keys if key["fingerprint"] != made]
        wait_until(
            lambda: [k for k in self.print_json(first, "key", "list")["keys"] if k["listened_with"]][0]["fingerprint"]
            == made,
            PATIENCE_S,
            "the new key is listened with",
        )
        self.assertEqual(self.print_json(first, "key", "retire", old)["fingerprint"], old)
        self.assertTrue(self.print_json(first, "deny", NO_NODE, "--reason", "lost")["denial"]["denied"])
        self.assertEqual(len(self.print_json(first, "denials")["denials"]), 1)
        self.assertFalse(self.print_json(first, "allow", NO_NODE)["denial"]["denied"])
        made = self.print_json(first, "authority", "create", str(self.folder / "authority.key"), "--yes")
        self.assertEqual(self.print_json(first, "authority", "show"), made)
        signed = ["--authority", str(self.folder / "authority.key")]
        deputy = self.print_json(first, "authority", "key", str(self.folder / "anna.key"))["key"]
        named = ["--name", "anna", "--may", "deny,keys"]
        appointed = self.print_json(first, "authority", "appoint", deputy, *named, *signed)
        self.assertEqual([(one["name"], one["may"]) for one in appointed["deputies"]], [("anna", "deny, keys")])
        self.assertEqual(self.print_json(first, "authority", "dismiss", deputy, *signed)["deputies"], [])
        self.assertTrue(self.print_json(first, "pending")["waiting"])
        self.assertEqual(len(self.print_json(first, "approve", "--all", "--yes", *signed)["nodes"]), 2)
        self.assertEqual(len(self.print_json(first, "certificates")["certificates"]), 2)
        self.assertTrue(self.print_json(first, "authority", "require", "certificates", *signed)["asks_for_certificates"])
        self.assertEqual(self.print_json(first, "invite", "--nodes", "3", *signed)["nodes"], 3)
        self.assertEqual(self.print_json(first, "authority", "use", "none")["authority"], "")
        self.assertGreater(len(self.print_json(first, "audit")["records"]), 3)
        exported = self.folder / "model.safetensors"
        written = self.print_json(first, "checkpoint", JOB)["path"]
        self.print_json(first, "export", JOB, str(exported))
        mean = self.print_json(first, "export", "--mean", written, str(exported), "--output", str(exported) + ".mean")
        self.assertEqual(mean["replicas"], 2)
        self.print_json(first, "import", str(exported), "--job", "another")
        self.assertEqual(self.print_json(first, "job", "set", JOB, "codec=q4")["values"], {"codec": "q4"})
        self.keep(second)
        self.assertTrue(self.print_json(first, "drain")["drained"])
        self.assertFalse(self.print_json(first, "drain", "--off")["drained"])
        doctor = gossamerctl(BUILD, "--socket", str(first.control_socket), "--json", "doctor")
        check("doctor", json.loads(doctor.stdout))
        self.seen.add("doctor")
        self.print_json(second, "leave", "--timeout", "1")
        self.local_cluster(first)
        self.assertEqual(self.seen, set(SCHEMA["commands"]))

    def local_cluster(self, node: Node) -> None:
        folder = ("--folder", str(self.folder / "local"))
        self.addCleanup(gossamerctl, BUILD, "cluster", "stop", *folder)
        started = self.print_json(node, "cluster", "start", "1", *folder)
        self.assertEqual((started["started"], started["nodes"][0]["running"]), (["node-1"], True))
        self.assertEqual(self.print_json(node, "cluster", "status", *folder)["nodes"], started["nodes"])
        self.assertEqual(self.print_json(node, "cluster", "stop", *folder)["stopped"], ["node-1"])

    def keep(self, node: Node) -> None:
        keeper = subprocess.Popen(
            [BUILD / "bin/gossamerctl", "--socket", node.control_socket, "--json", "keep", JOB],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(keeper.kill)
        wait_until(
            lambda: any(process["keeps"] for process in self.print_json(node, "jobs")["jobs"][0]["processes"]),
            PATIENCE_S,
            "the job is kept",
        )
        keeper.send_signal(signal.SIGTERM)
        check("keep", json.loads(keeper.communicate(timeout=PATIENCE_S)[0]))
        self.seen.add("keep")

    def test_every_command_is_in_the_schema_and_on_the_page(self) -> None:
        commands = set(subcommands())
        commands |= {f"{of} {name}" for of in GROUPS for name in subcommands(of)}
        commands -= GROUPS | WITHOUT_JSON
        self.assertEqual(commands, set(SCHEMA["commands"]))
        for command in commands | WITHOUT_JSON:
            self.assertRegex(DOCUMENT, f"`{command}( [^`]*)?`")
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        for name, definition in {**SCHEMA["commands"], **SCHEMA["$defs"]}.items():
            self.assertIn("description", definition, name)
            for member, described in definition.get("properties", {}).items():
                self.assertTrue("description" in described or "$ref" in described, f"{name}.{member}")
                self.assertIn(member, definition["required"], name)

    def test_what_does_not_fit_is_found(self) -> None:
        (node,) = self.start_nodes(1)
        answer = self.print_json(node, "status")
        for change in (
            lambda changed: changed["node"].pop("uptime_s"),
            lambda changed: changed["node"].update(undocumented=1),
            lambda changed: changed["node"].update(name=7),
            lambda changed: changed.pop("schema"),
            lambda changed: changed.update(schema=2),
            lambda changed: changed["node"].update(findings=[{"rule": "drift"}]),
        ):
            changed = copy.deepcopy(answer)
            change(changed)
            with self.assertRaises(jsonschema.ValidationError):
                check("status", changed)

    def test_an_answer_that_takes_longer_than_the_interval_of_top(self) -> None:
        (node,) = self.start_nodes(1)
        with tempfile.NamedTemporaryFile("r") as out:
            start_program(
                self,
                [BUILD / "bin/gossamerctl", "--socket", node.control_socket, "--json", "top", "--frames=20", "--interval=0.1"],
                stdin=subprocess.DEVNULL,
                stdout=out.fileno(),
            )

            def lines() -> int:
                return len(Path(out.name).read_text().splitlines())

            wait_until(lambda: lines() > 0, PATIENCE_S, "top begins")
            node.program.signal(signal.SIGSTOP)
            begun = time.monotonic()
            wait_until(lambda: time.monotonic() > begun + 0.3, PATIENCE_S, "it waits for an answer")
            node.program.signal(signal.SIGCONT)
            wait_until(lambda: lines() == 20, PATIENCE_S, "all frames have come")

    def test_each_exit_status(self) -> None:
        (node,) = self.start_nodes(1)
        socket = ("--socket", str(node.control_socket))

        def status(*arguments: str) -> int:
            done = gossamerctl(BUILD, *arguments)
            if done.returncode != 0:
                self.assertNotEqual(done.stderr + done.stdout, "")
            return done.returncode

        self.assertEqual(status(*socket, "status"), 0)
        self.assertEqual(status("--help"), 0)
        self.assertEqual(status("--version"), 0)
        self.assertEqual(status("--socket", str(self.folder / "nobody"), "status"), 1)
        self.assertEqual(status("--socket", str(self.folder / "nobody"), "explain", "--seconds", "0"), 1)
        # It finds a problem: others can read the key's file.
        self.cluster.cluster_key.chmod(0o644)
        self.assertEqual(status(*socket, "doctor"), 1)
        self.assertEqual(status(*socket), 2)
        self.assertEqual(status(*socket, "statsu"), 2)
        self.assertEqual(status(*socket, "status", "--frames"), 2)
        self.assertEqual(status(*socket, "checkpoint", "no-such-job"), 3)
        self.assertEqual(status(*socket, "key", "retire", "00"), 3)
        self.assertEqual(status(*socket, "run", "--", "/bin/sh", "-c", "exit 7"), 7)
        for number in "0123":
            self.assertRegex(DOCUMENT, rf"(?m)^\| {number} \| ")


if __name__ == "__main__":
    unittest.main()
