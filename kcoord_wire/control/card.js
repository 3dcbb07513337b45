// A group: its head, and if it is open its last minute as a chart, its members and its rebalances.
//
// The chart is made anew when the group has changed; what moves with the time alone is shifted as a whole.

const WINDOW = 60000, ROW = 22, STRIP = 20, AXIS = 20, COUNT = 34, REDRAW = 30000, REMEMBERED = 100;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const named = (member) => member.group_instance_id || member.client_id || member.member_id;
const runs = (numbers) => {
  const found = [];
  for (const number of numbers) {
    if (found.length && found.at(-1)[1] === number - 1) found.at(-1)[1] = number;
    else found.push([number, number]);
  }
  return found.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(", ");
};
const places = (assignment) => Object.entries(assignment || {}).map(([topic, numbers]) => `${topic} ${runs(numbers)}`).join("; ");
const held = (member) => Object.values(member.assignment || {}).reduce((sum, numbers) => sum + numbers.length, 0);
const caused = (one) => [one.trigger, one.client_id && cut(one.client_id)].filter(Boolean).join(": ");

class Card {
  constructor(id) {
    this.id = id;
    this.lanes = new Map(); // member id -> its name and what it had when
    this.rebalances = [];
    this.isOpen = this.isSeen = false;
    this.badge = el("span", { class: "badge" });
    this.facts = el("p", { class: "quiet" });
    this.toggle = el("button", { type: "button", "aria-expanded": "false", onclick: () => this.open(!this.isOpen) }, bdi(id || "(without a name)"));
    this.again = el("button", { type: "button", "data-act": true, onclick: () => act(`groups/${encodeURIComponent(this.id)}/rebalance`, { reason: "asked for on the page" }) }, "Rebalance");
    this.again.setAttribute("aria-label", `Let the group ${cut(id)} rebalance`);
    this.mover = el("select", { "data-act": true, onchange: () => this.move() });
    this.mover.setAttribute("aria-label", `Broker that coordinates ${cut(id)}`);
    this.moving = el("label", { hidden: true }, "on ", this.mover);
    this.inside = el("div", { class: "inside", hidden: true });
    this.element = el("section", { class: "card" },
      el("div", { class: "top" }, el("h2", {}, this.toggle, " ", this.badge), el("div", { class: "controls" }, this.moving, this.again)), this.facts, this.inside);
  }

  open(isOpen) {
    [this.isOpen, this.isChosen] = [isOpen, true];
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    this.inside.hidden = !isOpen;
    if (isOpen && !this.chart) this.furnish();
    this.fill();
  }

  furnish() {
    this.progress = el("p", { class: "progress", hidden: true });
    this.chart = svg("svg", { class: "live-chart", role: "img", "aria-label": `Members of ${cut(this.id)} over the last minute, and its rebalances; the tables have the same` });
    this.members = new Table("Members and what they own", [
      ["member", (one) => bdi(named(one)), named],
      ["host", (one) => one.client_host, (one) => one.client_host],
      [">partitions", (one) => number(held(one)), held],
      ["which", (one) => bdi(places(one.assignment) || "-", 400)],
      [">epoch", (one) => String(one.member_epoch ?? this.group.generation_id), (one) => one.member_epoch ?? 0],
      ["", (one) => (one.awaited ? `its ${one.awaited} is awaited` : one.member_id === this.group.leader_id ? "leads" : "")],
    ], (one) => [one.member_id, one.client_id, one.client_host, one.group_instance_id].join(" "));
    this.table = new Table("Rebalances that have ended, the last first", [
      ["began", (one) => clock(one.started_at, WINDOW)],
      [">generation", (one) => String(one.generation_id)],
      ["trigger", (one) => bdi(caused(one), 100)],
      ["stated reason", (one) => bdi(one.reason || "", 200)],
      [">took", (one) => duration(one.ended_at - one.started_at)],
      [">joined", (one) => number(one.joined)],
      ["outcome", (one) => one.outcome],
      ["lost", (one) => one.removed.map((gone) => `${cut(gone.client_id)}: ${gone.why}`).join("; ") + (one.lost > one.removed.length ? ` and ${number(one.lost - one.removed.length)} more` : "")],
    ], null);
    listTo(this.inside, this.progress, this.chart, this.members.element, this.table.element);
    for (const each of [this.members.find, this.members.more]) each.addEventListener(each.type === "search" ? "input" : "click", () => this.draw());
  }

  // Take in the group as it is now. At the first look, members of a settled group have had what they have since it is
  // so, and those that it waits for have been awaited since it began to; of others it is not known since when.
  take(group, at) {
    const since = (member) => !wasSeen && (group.is_settled || member.awaited) ? Math.min(group.state_since, at) : at;
    const wasSeen = this.group;
    this.group = group;
    const present = new Set(group.members.map((member) => member.member_id));
    for (const [id, lane] of this.lanes) if (!present.has(id)) this.end(lane, at);
    for (const member of group.members) {
      const lane = this.lanes.get(member.member_id) || { name: named(member), parts: [] };
      const last = lane.parts.at(-1), which = places(member.assignment);
      if (!last || last.until !== null || last.which !== which || last.awaited !== member.awaited) {
        this.end(lane, at);
        lane.parts.push({ from: since(member), until: null, held: held(member), which, awaited: member.awaited });
      }
      this.lanes.set(member.member_id, lane);
    }
  }

  end(lane, at) {
    const last = lane.parts.at(-1);
    if (last && last.until === null) last.until = at;
  }

  get kind() {
    return this.group.is_settled ? "Stable" : this.group.state === "Stable" ? "settling" : this.group.state;
  }

  // Show what has changed.
  fill() {
    const group = this.group, isNew = group.assignment_epoch !== null;
    this.badge.textContent = this.kind;
    this.badge.className = `badge ${group.is_settled ? "info" : group.state === "Empty" ? "" : "warning"}`;
    listTo(this.facts, [
      isNew ? `${group.protocol_type === "share" ? "share group" : "KIP-848"}, epoch ${group.generation_id}, assignment epoch ${group.assignment_epoch}` : `generation ${group.generation_id}`,
      group.protocol && cut(group.protocol), counted(group.members.length, "member"),
      group.joining.length ? `${counted(group.joining.length, "member id")} given out and not used` : "",
      `${counted(this.rebalances.length, "rebalance")} seen`,
    ].filter(Boolean).join(" · "));
    const node = live.leaders[group.partition];
    this.moving.hidden = live.brokers.length < 2;
    const listed = JSON.stringify([node, live.brokers]);
    if (listed !== this.listed) this.listBrokers(node); // a list that is open would close
    this.listed = listed;
    if (!this.isOpen) return;
    this.members.set(group.members);
    this.table.set(this.rebalances.toReversed());
    this.draw();
    this.tell();
  }

  listBrokers(node) {
    const there = live.brokers.filter((broker) => broker.state === "running" || broker.node === node);
    listTo(this.mover, node < 0 ? el("option", { value: "-1" }, "no broker") : null,
      there.map((broker) => el("option", { value: String(broker.node), selected: broker.node === node }, `broker ${broker.node}`)));
  }

  async move() {
    await act(`groups/${encodeURIComponent(this.id)}/coordinator`, { to: Number(this.mover.value) });
    this.listed = ""; // it may not have moved
    this.fill();
  }

  tell() {
    const current = this.group.rebalance;
    this.progress.hidden = !current;
    if (!current) return;
    const awaited = this.group.members.filter((member) => member.awaited);
    const more = awaited.length > 5 ? ` and ${number(awaited.length - 5)} more` : "";
    const waits = awaited.length ? `; waits for ${awaited.slice(0, 5).map((m) => `${cut(named(m))} (${m.awaited})`).join(", ")}${more}` : "";
    const by = current.client_id ? ` by ${cut(current.client_id)}` : "";
    this.progress.textContent =
      `Rebalance for ${duration(Math.max(0, now() - current.started_at))}: ${current.trigger}${by}${current.reason ? ` (${cut(current.reason, 200)})` : ""}${waits}`;
  }

  // Those in trouble first: waited for, then gone.
  shownLanes(since) {
    for (const [id, lane] of this.lanes) {
      lane.parts = lane.parts.filter((part) => part.until === null || part.until > since);
      if (!lane.parts.length) this.lanes.delete(id);
    }
    if (this.lanes.size <= FOLD) return [...this.lanes.values()];
    const found = new Set(this.members.chosen().map((member) => member.member_id));
    const trouble = ([, lane]) => { const last = lane.parts.at(-1); return last.awaited ? 0 : last.until === null ? 2 : 1; };
    const lanes = [...this.lanes].filter(([id, lane]) => found.has(id) || (lane.parts.at(-1).until !== null && !this.members.find.value));
    return lanes.map((each) => [trouble(each), each[1]]).sort(([a], [b]) => a - b).slice(0, this.members.most).map(([, lane]) => lane);
  }

  draw() {
    const at = now(), lanes = this.shownLanes(at - WINDOW);
    const width = Math.max(280, this.chart.clientWidth || 800), left = Math.min(220, width * 0.3), plot = width - left - COUNT;
    const height = STRIP + ROW * lanes.length, scale = plot / WINDOW;
    const x = (ms) => plot + (Math.max(ms, at - WINDOW - REDRAW) - at) * scale;
    const until = (ms) => (ms === null ? at + 10 * WINDOW : ms);
    const bar = (kind, from, end, y, high, tip) => svg("rect", { class: kind, x: x(from), y, width: Math.max(3, x(until(end)) - x(from)), height: high, "data-tip": tip });
    const span = (from, end) => `${clock(from, WINDOW)} to ${end === null ? "now" : clock(end, WINDOW)}`;
    const bars = [], names = [svg("text", { x: 0, y: 14 }, "rebalances")];
    for (const one of [...this.rebalances, ...(this.group.rebalance ? [this.group.rebalance] : [])]) {
      if (until(one.ended_at) < at - WINDOW) continue;
      const took = one.ended_at === null ? "in progress" : `took ${duration(one.ended_at - one.started_at)}, ${one.outcome}`;
      const tip = `${caused(one)}\n${took}\n${span(one.started_at, one.ended_at)}`;
      bars.push(bar("band", one.started_at, one.ended_at, STRIP, height - STRIP, tip), bar("rebalance", one.started_at, one.ended_at, 4, STRIP - 8, tip));
    }
    lanes.forEach((lane, row) => {
      const y = STRIP + row * ROW, last = lane.parts.at(-1), most = Math.floor(left / 7.5);
      names.push(svg("text", { class: "who", x: 0, y: y + 15, "data-tip": cut(lane.name, 1500) }, cut(lane.name, most)));
      names.push(svg("text", { class: "count", x: width, y: y + 15 }, last.until === null ? String(last.held) : "gone"));
      for (const part of lane.parts) {
        const what = part.awaited ? `its ${part.awaited} is awaited` : part.held ? `${counted(part.held, "partition")}: ${cut(part.which, 300)}` : "no partitions";
        const kind = part.awaited ? "lane awaited" : part.held ? "lane" : "lane none";
        bars.push(bar(kind, part.from, part.until, y + 4, ROW - 8, `${cut(lane.name)}\n${what}\n${span(part.from, part.until)}`));
      }
    });
    for (let back = 0; back <= 60; back += plot > 400 ? 15 : 30) {
      const place = left + plot - back * 1000 * scale, end = live.lost ? clock(live.lost, WINDOW) : "now";
      names.unshift(svg("line", { x1: place, x2: place, y1: 0, y2: height }));
      names.push(svg("text", { x: place, y: height + 15, "text-anchor": back ? (back === 60 ? "start" : "middle") : "end" }, back ? `${back} s ${live.lost ? "before" : "ago"}` : end));
    }
    this.drawnAt = at;
    this.scale = scale;
    this.shifted = svg("g", {}, ...bars);
    this.chart.setAttribute("viewBox", `0 0 ${width} ${height + AXIS}`);
    this.chart.setAttribute("height", height + AXIS);
    this.chart.replaceChildren(...names, svg("svg", { x: left, y: 0, width: plot, height, overflow: "hidden" }, this.shifted));
  }

  // The time has gone on.
  tick() {
    if (!this.isOpen || !this.isSeen) return;
    const past = now() - this.drawnAt;
    if (past > REDRAW) this.draw();
    else this.shifted.setAttribute("transform", `translate(${-past * this.scale} 0)`);
    if (this.group.rebalance) this.tell();
  }
}
