// Draws status.json, and again every two seconds while the page is visible. Everything that comes from the network goes
// into the page as text, never as markup.
"use strict";

const PERIOD_MS = 2000;
const TIMEOUT_MS = 8000;
const MOST_NODES_DRAWN = 24;
const AGE_BOUNDS = ["1", "2", "4", "8", "16", "64", "more"];
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// --- numbers for people

function scaled(value, units, base) {
  let at = 0;
  while (Math.abs(value) >= base && at + 1 < units.length) {
    value /= base;
    ++at;
  }
  const digits = at === 0 && Number.isInteger(value) ? 0 : value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + units[at];
}
const count = (value) => scaled(value, ["", " k", " M", " G", " T"], 1000);
const bytes = (value) => scaled(value, [" B", " kB", " MB", " GB", " TB"], 1000);
const rate = (value) => bytes(value) + "/s";
const share = (value) =>
  value === 0 ? "0" : value < 1e-6 ? value.toExponential(1) : (100 * value).toPrecision(3) + " %";
const milliseconds = (value) => (value > 0 ? (value < 10 ? value.toFixed(2) : value.toFixed(0)) + " ms" : "–");

function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of parts) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

const nameOf = (node) => node.name || node.node.slice(0, 8) || node.address;
const brief = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

// --- the parts of the page

function drawHead(node) {
  document.title = `${node.name} · Gossamer`;
  byId("name").textContent = node.name;
  byId("about").textContent =
    `node ${node.node.slice(0, 8)} at ${node.address} · version ${node.version} · up for ${duration(node.uptime_s)}`;
}

function drawNumbers(node) {
  const numbers = [
    ["state", node.state, node.state === "running" ? "good" : "warn"],
    ["neighbours", String(node.neighbours), node.neighbours > 0 ? "" : "warn"],
    ["members", String(node.members + 1)],
    ["training processes", String(node.clients)],
    ["sent", bytes(node.bytes_sent)],
    ["received", bytes(node.bytes_received)],
    ["processor time", duration(node.cpu_s)],
  ];
  if (node.limits_near) numbers.push(["near a limit", node.limits_near, "warn"]);
  if (node.messages_rejected > 0) numbers.push(["messages rejected", count(node.messages_rejected), "bad"]);
  byId("numbers").replaceChildren(...numbers.map(([title, value, tone = ""]) =>
    element("div", { class: "number" }, element("b", { class: tone }, value), element("span", {}, title))));
}

// Shows what keeps jobs from averaging well and what to do, in the words of the watch.
function drawFindings(findings) {
  const section = byId("findings");
  section.hidden = findings.length === 0;
  section.replaceChildren(...findings.map((finding) => element("p", { class: "finding" },
    element("b", { class: finding.grade === "problem" ? "bad" : "warn" }, finding.rule), " ",
    (finding.job ? `${finding.job}: ` : "") + finding.text + ", for " + duration(finding.since_s) + ". ",
    element("span", { class: "faint" }, finding.advice + "."))));
}

// The pairs of these nodes that are linked, as one of them has said.
function linksAmong(nodes, summaries) {
  const place = new Map(nodes.map((node, at) => [node.node.slice(0, 8), at]));
  const pairs = new Map();
  for (const summary of summaries) {
    const from = place.get(summary.node.slice(0, 8));
    for (const to of summary.linked.map((other) => place.get(other))) {
      if (from !== undefined && to !== undefined) pairs.set(`${Math.min(from, to)} ${Math.max(from, to)}`, [from, to]);
    }
  }
  return [...pairs.values()];
}

// Draws this node in the middle and the nodes that it knows around it; its links are as thick as their goodput. Links
// among the other nodes are curves that pass by this node.
function drawGraph(node, peers, members, summaries) {
  const graph = byId("graph");
  const suspected = new Set(members.filter((member) => member.state === "suspected").map((member) => member.node));
  const linked = new Map(peers.filter((peer) => peer.node).map((peer) => [peer.node, peer]));
  const others = [...linked.values()];
  for (const member of members) {
    if (!linked.has(member.node)) others.push({ ...member, up: false });
  }
  others.sort((a, b) => b.up - a.up || (a.node < b.node ? -1 : 1));
  if (others.length === 0) {
    graph.replaceChildren(element("p", { class: "faint" }, "This node knows no other yet."));
    return;
  }
  const drawn = others.slice(0, MOST_NODES_DRAWN);
  const narrow = graph.clientWidth < 560;
  const [width, height] = narrow ? [360, 340] : [720, 380];
  const edges = shape("g", {});
  const nodes = shape("g", {});
  const [x, y] = [width / 2, height / 2];
  const places = drawn.map((_, at) => {
    const angle = (2 * Math.PI * (at + 0.5)) / drawn.length - Math.PI / 2;
    return [x + Math.cos(angle) * (width / 2 - 70), y + Math.sin(angle) * (height / 2 - 45)];
  });
  let [top, bottom] = [y, y];
  for (const [, oy] of places) [top, bottom] = [Math.min(top, oy), Math.max(bottom, oy)];
  for (const [from, to] of linksAmong(drawn, summaries)) {
    const [[ax, ay], [bx, by]] = [places[from], places[to]];
    const [mx, my] = [(ax + bx) / 2, (ay + by) / 2];
    // The curve bends away from the middle, by a fifth of the length of the straight line.
    const side = (mx - x) * (ay - by) + (my - y) * (bx - ax) > 0 ? 0.2 : -0.2;
    const [cx, cy] = [mx + side * (ay - by), my + side * (bx - ax)];
    top = Math.min(top, (my + cy) / 2);
    bottom = Math.max(bottom, (my + cy) / 2);
    edges.append(shape("path", { class: "edge among", d: `M${ax} ${ay} Q${cx} ${cy} ${bx} ${by}` }));
  }
  const picture = shape("svg", {
    viewBox: `0 ${top - 25} ${width} ${bottom - top + 65}`, role: "img",
    "aria-label": `${node.name} and ${others.length} other nodes, ${node.neighbours} of them linked`,
  });
  drawn.forEach((other, at) => {
    const [ox, oy] = places[at];
    const thickness = other.up ? Math.min(6, 1.5 + Math.log10(1 + (other.goodput_mbit_s || 0))) : 1.2;
    edges.append(shape("line", {
      class: other.up ? "edge" : "edge down", x1: x, y1: y, x2: ox, y2: oy, "stroke-width": thickness,
    }));
    if (other.up && drawn.length <= 12) {
      edges.append(shape("text", { class: "note", x: (x + ox) / 2, y: (y + oy) / 2 + 4 }, milliseconds(other.round_trip_ms)));
    }
    const state = suspected.has(other.node) ? "suspected" : other.up ? "up" : "down";
    nodes.append(
      shape("circle", { class: state, cx: ox, cy: oy, r: 11 }, shape("title", {}, `${nameOf(other)}: ${state}`)),
      shape("text", { x: ox, y: oy + 28 }, brief(nameOf(other), drawn.length > 10 ? 10 : 18)),
    );
  });
  nodes.append(shape("circle", { class: "self", cx: x, cy: y, r: 14 }),
               shape("text", { x, y: y + 32 }, brief(node.name, 18)));
  picture.append(edges, nodes);
  const left = others.length - drawn.length;
  graph.replaceChildren(picture, ...(left > 0 ? [element("p", { class: "faint" }, `and ${left} more`)] : []));
}

// Each column has a title, a function that shows a row, and the class of its cells.
function drawTable(table, columns, rows) {
  const head = element("tr", {}, ...columns.map(([title, , kind = ""]) => element("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) => element("tr", {}, ...columns.map(([title, value, kind = "", tone = () => ""]) =>
    element("td", { "data-title": title, class: `${kind} ${tone(row)}`.trim() }, value(row)))));
  table.replaceChildren(...(rows.length ? [element("thead", {}, head), element("tbody", {}, ...body)] : []));
}

const goodput = (row) => (row.goodput_mbit_s > 0 ? row.goodput_mbit_s.toPrecision(3) + " Mbit/s" : "–");

function drawLinks(peers) {
  drawTable(byId("links"), [
    ["node", nameOf],
    ["state", (peer) => (peer.up ? "up" : "down"), "", (peer) => (peer.up ? "good" : "bad")],
    ["round trip", (peer) => milliseconds(peer.round_trip_ms), "number-cell"],
    ["least", (peer) => milliseconds(peer.least_round_trip_ms), "number-cell"],
    ["goodput", goodput, "number-cell"],
    ["sent", (peer) => bytes(peer.bytes_sent), "number-cell"],
    ["received", (peer) => bytes(peer.bytes_received), "number-cell"],
    ["waiting", (peer) => bytes(peer.queued_bytes), "number-cell"],
    ["", (peer) => peer.note, "note wide-cell"],
  ], peers);
}

// Shows what other nodes have reported about themselves.
function drawCluster(cluster) {
  const told = (job) =>
    `${job.job}: ${job.state}, ${count(job.clock)} samples, ${share(job.consensus)} from its partners`;
  byId("cluster-about").textContent = cluster.length
    ? `${cluster.length} other node${cluster.length === 1 ? " was" : "s were"} heard of in the last minute.`
    : "Nothing was heard of other nodes in the last minute.";
  drawTable(byId("cluster"), [
    ["node", nameOf],
    ["as of", (node) => `${duration(node.age_s)} ago`, "number-cell"],
    ["neighbours", (node) => String(node.neighbours), "number-cell", (node) => (node.neighbours ? "" : "warn")],
    ["goodput", goodput, "number-cell"],
    ["jobs", (node) => node.jobs.map(told).join("\n") || "none", "lines wide-cell"],
  ], cluster);
}

// --- curves

function curve(title, ages, values, show) {
  const known = values.filter((value) => value !== null);
  const now = known.length ? show(known[known.length - 1]) : "–";
  const box = element("div", { class: "curve" }, element("header", {}, element("span", {}, title), element("b", {}, now)));
  const [width, height] = [300, 64];
  const picture = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${now}`,
  });
  box.append(picture);
  if (known.length < 2) return box;
  const oldest = Math.max(...ages, 60);
  const most = Math.max(...known);
  const least = Math.min(0, ...known);
  const span = most - least || 1;
  // Each run of known values is one part of the line.
  let run = [];
  const end = () => {
    if (run.length > 1) {
      const line = run.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ");
      const [first, last] = [run[0][0].toFixed(1), run[run.length - 1][0].toFixed(1)];
      picture.append(shape("polygon", { class: "area", points: `${first},${height} ${line} ${last},${height}` }),
                     shape("polyline", { class: "path", points: line }));
    }
    run = [];
  };
  values.forEach((value, at) => {
    if (value === null) return end();
    run.push([width * (1 - ages[at] / oldest), height - 2 - (height - 6) * (value - least) / span]);
  });
  end();
  box.append(element("div", { class: "axis" }, element("span", {}, `${duration(oldest)} ago`),
                     element("span", {}, `at most ${show(most)}`)));
  return box;
}

function bars(title, values, names, about) {
  const total = values.reduce((sum, value) => sum + value, 0);
  const box = element("div", { class: "curve" },
                      element("header", {}, element("span", {}, title), element("b", {}, count(total))));
  const [width, height] = [300, 64];
  const picture = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": names.map((name, at) => `${name}: ${values[at]}`).join(", "),
  });
  const step = width / values.length;
  values.forEach((value, at) => {
    const tall = total ? (height - 4) * value / Math.max(...values) : 0;
    picture.append(shape("rect", { class: "bar", x: at * step + 3, y: height - tall, width: step - 6, height: tall },
                         shape("title", {}, `${names[at]} ${about}: ${value}`)));
  });
  box.append(picture, element("div", { class: "axis bounds" }, ...names.map((name) => element("span", {}, name))));
  return box;
}

function drawJob(job, history) {
  const tone = job.state === "running" ? "good" : job.state === "quarantined" ? "bad" : "warn";
  const exchanged = job.exchanges > 0;
  const box = element("article", { class: "job" },
    element("h3", {}, job.job, " ", element("span", { class: tone }, job.state)),
    element("p", { class: "faint" },
      `${count(job.elements)} elements in ${job.fragments} fragment${job.fragments === 1 ? "" : "s"} · ${job.codec} · ` +
      `${job.clients} process${job.clients === 1 ? "" : "es"} · ${job.neighbours} replica${job.neighbours === 1 ? "" : "s"} in reach · ` +
      `${count(job.exchanges)} exchanges` +
      (job.mixing_per_s > 0 ? ` · they halve differences in ${milliseconds(1000 * Math.LN2 / job.mixing_per_s)}` : "") +
      Object.entries(job.settings.values).map(([name, value]) => ` · all nodes: ${name}=${value}`).join("") +
      (job.state === "joining" ? ` · ${job.fragments_pulled} of ${job.fragments} fragments pulled` : "") +
      (job.blocks > 0 ? ` · ${share(job.wide_blocks / job.blocks)} of blocks wide` : "") +
      (job.unresolved > 0 ? ` · ${job.unresolved} unresolved` : "")));
  if (job.logged?.length) {
    const number = (value) => (value === null ? "not finite" : Number(value.toPrecision(4)).toString());
    box.append(element("p", {}, job.logged.map((one) => `${one.name} ${number(one.value)}` +
      (one.nodes > 1 ? ` (${number(one.mean)} over ${one.nodes} nodes)` : "")).join(" · ")));
  }
  if (job.note) box.append(element("p", { class: "warn" }, job.note));
  if (job.violations > 0) box.append(element("p", { class: "bad" }, `${job.violations} replies that did not fit their request`));
  const past = history.jobs[job.job];
  if (!past) return box;
  box.append(element("div", { class: "curves" },
    curve("clock, samples", past.age_s, past.clock, count),
    curve("distance to partners, of the norm", past.age_s, past.consensus, share),
    curve("exchanges a second", past.age_s, past.exchanges_s, (value) => value.toPrecision(3)),
    curve("sent", past.age_s, past.sent_bytes_s, rate),
    curve("received", past.age_s, past.received_bytes_s, rate),
    curve("oldest publication, samples", past.age_s, past.age_samples, count),
    curve("codec error, of the difference", past.age_s, past.codec_error, share),
    ...(exchanged ? [bars("exchanges by age, in publication intervals", job.ages, AGE_BOUNDS, "intervals")] : [])));
  return box;
}

function drawLog(lines) {
  const log = byId("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
  log.replaceChildren(...lines.map((line) => {
    const text = line.trimEnd();
    const level = text.slice(24, 32).trim();
    const tone = level === "error" || level === "critical" ? "bad" : level === "warning" ? "warn" : "";
    return element("li", { class: tone }, text);
  }));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function draw(status) {
  drawHead(status.node);
  drawNumbers(status.node);
  drawFindings(status.node.findings);
  drawGraph(status.node, status.peers, status.members, status.cluster);
  drawLinks(status.peers);
  byId("jobs").replaceChildren(...(status.jobs.length
    ? status.jobs.map((job) => drawJob(job, status.history))
    : [element("p", { class: "faint" }, "No training process is attached to this node.")]));
  drawCluster(status.cluster);
  drawLog(status.log);
}

function complain(text) {
  const trouble = byId("trouble");
  trouble.hidden = !text;
  trouble.textContent = text;
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      draw(await answer.json());
      complain("");
      document.body.dataset.drawn = "yes";
    } catch (error) {
      complain(`The daemon does not answer (${error.message}). What is shown here is old; trying again.`);
    }
  }
  setTimeout(refresh, PERIOD_MS);
}

refresh();
