"""Writes the recorded messages as inputs of the fuzz targets that take messages (tests/fuzz/fuzz.hpp, Messages).

wire_seeds.py RECORDED FOLDER: a file for each message of the files in RECORDED (tests/unit/peer/wire/recorded_test.cpp
says what is in them), and one for each two that belong together.
"""

import sys
from pathlib import Path


def message(words: list[str]) -> bytes:
    frames = [b"" if word == "-" else bytes.fromhex(word) for word in words]
    return bytes([len(frames) - 1]) + b"".join(len(frame).to_bytes(2, "little") + frame for frame in frames)


def main() -> None:
    recorded, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    messages = {}
    for file in sorted(recorded.iterdir()):
        for line in file.read_text().splitlines():
            name, *words = line.split()
            messages[name] = message(words)
    messages["bulkPart.both"] = messages["bulkPart.first"] + messages["bulkPart.next"]
    for name, content in messages.items():
        (folder / name).write_bytes(content)


main()
