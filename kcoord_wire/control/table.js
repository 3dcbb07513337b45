// A table whose rows are replaced as a whole. Above FOLD rows it is folded, with a search; its headers sort.

const FOLD = 20, FEW = 12, MORE = 100;

// Text of a client: cut, and kept from changing the direction of what stands around it. The whole is its tooltip.
const cut = (text, most = 60) => (text.length > most ? Array.from(text.slice(0, 2 * most)).slice(0, most - 1).join("") + "…" : text);
const bdi = (text, most) => el("bdi", { "data-tip": cut(text, most) === text ? null : cut(text, 1500) }, cut(text, most));

class Table {
  // columns: name, with ">" before it for figures; what is shown of a row; what it is sorted by, null for its order
  // textOf: what the search looks at, null for none
  // below: what a row has below it, if anything
  constructor(caption, columns, textOf, below = () => null) {
    [this.columns, this.textOf, this.below, this.rows, this.most] = [columns, textOf, below, [], FEW];
    this.order = null; // index of a column
    this.body = el("tbody");
    this.find = el("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => this.fill() });
    this.form = el("form", { hidden: true, role: "search", onsubmit: (event) => event.preventDefault() }, el("label", {}, "Find ", this.find));
    this.form.setAttribute("aria-label", `Find in: ${caption}`);
    this.more = el("button", { type: "button", class: "link", hidden: true, onclick: () => { this.most += MORE; this.fill(); } });
    this.heads = columns.map(([title, , value], at) => el("th", { scope: "col", class: title.startsWith(">") ? "figure" : "" },
      value ? el("button", { type: "button", onclick: () => this.sort(at) }, title.replace(">", "")) : title.replace(">", "")));
    const table = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, this.heads)), this.body);
    this.element = el("div", { class: "listed", hidden: true }, this.form, el("div", { class: "scroll" }, table), this.more);
  }

  sort(at) {
    this.order = this.order && this.order[0] === at ? [at, !this.order[1]] : [at, false];
    this.heads.forEach((head, each) => {
      if (each === at) head.setAttribute("aria-sort", this.order[1] ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.fill();
  }

  set(rows) {
    this.rows = rows;
    this.fill();
  }

  // The rows that are searched for, in the chosen order.
  chosen() {
    const words = this.form.hidden ? [] : this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.rows.filter((row) => words.every((word) => this.textOf(row).toLowerCase().includes(word)));
    if (!this.order) return rows;
    const [at, down] = this.order, value = this.columns[at][2];
    const sorted = rows.map((row) => [value(row), row]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, row]) => row);
    return down ? sorted.reverse() : sorted;
  }

  lines(row) {
    const cells = this.columns.map(([title, show], at) =>
      el(at ? "td" : "th", at ? { class: title.startsWith(">") ? "figure" : "" } : { scope: "row" }, show(row)));
    const below = this.below(row);
    return [el("tr", {}, cells), ...(below ? [el("tr", { class: "particulars" }, el("td", { colspan: String(cells.length) }, below))] : [])];
  }

  fill() {
    this.element.hidden = !this.rows.length;
    this.form.hidden = !this.textOf || this.rows.length <= FOLD;
    const rows = this.chosen();
    const shown = rows.slice(0, rows.length <= FOLD ? FOLD : this.most);
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.body.replaceChildren(...shown.flatMap((row) => this.lines(row)));
    if (focused) (Array.from(this.body.querySelectorAll("[data-key]")).find((each) => each.dataset.key === focused) || this.body).focus?.();
    this.more.hidden = rows.length <= shown.length;
    this.more.textContent = `and ${number(rows.length - shown.length)} more`;
  }
}
