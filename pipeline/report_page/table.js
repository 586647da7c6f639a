// The table of videos: filter, sort, pages. 50 rows are in the document at a time.
"use strict";

reelcache.PAGE_ROWS = 50;

reelcache.columns = function (table) {
  const { make, count, name } = reelcache;
  const c = table.columns;
  const all = [
    ["name", "Name", (i) => c.name[i].toLowerCase(), null],
    ["seconds", "Duration", (i) => c.seconds[i], (i) => reelcache.duration(c.seconds[i])],
    ["clips", "Clips", (i) => c.clips[i], (i) => count(c.clips[i])],
    [
      "shape",
      "Picture",
      (i) => c.width[i] * c.height[i],
      (i) => (c.width[i] ? `${c.width[i]} × ${c.height[i]}` : "–"),
    ],
    [
      "fps",
      "fps",
      (i) => c.fps[i],
      (i) => (c.fps[i] === null ? "–" : String(Number(c.fps[i].toPrecision(5)))),
    ],
    ["codec", "Codec", (i) => table.words[c.codec[i]], (i) => name(table.words[c.codec[i]] || "–")],
    [
      "sound",
      "Sound",
      (i) => c.sound[i],
      (i) => (c.sound[i] ? "yes" : c.sound[i] === null ? "–" : "no"),
    ],
    ["tokens", "Tokens", (i) => c.tokens[i], (i) => reelcache.short(c.tokens[i])],
    ["bytes", "Size", (i) => c.bytes[i], (i) => reelcache.bytes(c.bytes[i])],
  ];
  if (c.static.some((value) => value !== null)) {
    all.push([
      "motion",
      "Motion",
      (i) => (c.static[i] === null ? null : 1 - c.static[i]),
      (i) =>
        c.static[i] === null
          ? "–"
          : make(
              "span",
              {
                class: "meter",
                title: `${reelcache.percent(1 - c.static[i])} of the picture changes from frame to frame`,
              },
              make("span", { style: { width: `${100 * (1 - c.static[i])}%` } }),
            ),
    ]);
  }
  if (c.events.some((events) => events)) {
    const total = (i) => Object.values(c.events[i] || {}).reduce((a, b) => a + b, 0);
    all.push(["events", "Events", total, (i) => count(total(i))]);
  }
  return all.map(([key, title, value, cell]) => ({ key, title, value, cell }));
};

reelcache.Table = class {
  constructor(data, charts) {
    this.table = data.videos;
    this.charts = charts;
    this.columns = reelcache.columns(this.table);
    this.chosen = new Map(); // chart -> bin
    this.cluster = null;
    this.words = "";
    this.sort = { key: "name", falling: false };
    this.page = 0;
    const c = this.table.columns;
    this.all = c.id.map((_, row) => row);
    this.texts = c.id.map((id, row) =>
      `${c.name[row]}\n${this.table.words[c.folder[row]]}\n${id}\n${this.table.words[c.codec[row]]}`.toLowerCase(),
    );
    this.rows = this.all;
  }

  passes(row, but) {
    for (const [chart, bin] of this.chosen) {
      if (chart !== but && chart.bin(row) !== bin) return false;
    }
    return this.cluster === null || this.table.columns.cluster[row] === this.cluster;
  }

  update() {
    const wanted = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.all.filter((row) => wanted.every((word) => this.texts[row].includes(word)));
    this.found = found;
    this.rows = found.filter((row) => this.passes(row));
    const column = this.columns.find((one) => one.key === this.sort.key);
    const keys = new Map(this.rows.map((row) => [row, column.value(row)]));
    const sign = this.sort.falling ? -1 : 1;
    this.rows.sort((a, b) => {
      const x = keys.get(a),
        y = keys.get(b);
      if (x === y) return a - b;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
    this.page = Math.min(
      this.page,
      Math.max(0, Math.ceil(this.rows.length / reelcache.PAGE_ROWS) - 1),
    );
    this.draw();
  }

  refilter() {
    this.page = 0;
    this.update();
  }

  draw() {
    const { make, count } = reelcache;
    const at = (id) => document.getElementById(id);
    at("charts").replaceChildren(
      ...this.charts.map((chart) => {
        const kept = this.found.filter((row) => this.passes(row, chart));
        return reelcache.drawChart(
          chart,
          this.all,
          kept,
          this.chosen.has(chart) ? this.chosen.get(chart) : null,
          (bin) => {
            const held = document.activeElement.getAttribute("aria-label") || "";
            if (bin === null) this.chosen.delete(chart);
            else this.chosen.set(chart, bin);
            this.refilter();
            const bar = held.slice(0, held.lastIndexOf(":") + 1); // a count follows
            const again = [...at("charts").querySelectorAll("button")].find(
              (b) => bar && b.getAttribute("aria-label").startsWith(bar),
            );
            if (again) again.focus();
          },
        );
      }),
    );
    const chips = [...this.chosen].map(([chart, bin]) =>
      this.chip(`${chart.title}: ${chart.labels[bin]}`, () => this.chosen.delete(chart)),
    );
    if (this.cluster !== null)
      chips.push(
        this.chip(`Duplicates: cluster ${this.cluster + 1}`, () => {
          this.cluster = null;
        }),
      );
    at("chips").replaceChildren(...chips);
    at("found").textContent =
      this.rows.length === this.all.length
        ? count(this.all.length, "video")
        : `${count(this.rows.length)} of ${count(this.all.length, "video")}`;
    at("videos").replaceChildren(this.head(), this.body());
    this.pager(at("pager"));
  }

  chip(text, remove) {
    return reelcache.make(
      "button",
      {
        type: "button",
        class: "chip",
        title: "Take this filter away",
        onclick: () => {
          remove();
          this.refilter();
        },
      },
      reelcache.shown(text),
      reelcache.make("span", { "aria-hidden": "true", class: "cross" }, "×"),
    );
  }

  head() {
    const { make } = reelcache;
    return make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { class: "picture" }, make("span", { class: "unseen" }, "Picture")),
        ...this.columns.map((column) => {
          const now = this.sort.key === column.key;
          const arrow = now ? (this.sort.falling ? "↓" : "↑") : "";
          return make(
            "th",
            {
              class: column.key,
              scope: "col",
              "aria-sort": now ? (this.sort.falling ? "descending" : "ascending") : null,
            },
            make(
              "button",
              {
                type: "button",
                class: "sort",
                onclick: () => {
                  this.sort = {
                    key: column.key,
                    falling: now
                      ? !this.sort.falling
                      : column.key !== "name" && column.key !== "codec",
                  };
                  this.refilter();
                  document.querySelector(`th.${column.key} button`).focus();
                },
              },
              column.title,
              make("span", { class: "arrow", "aria-hidden": "true" }, arrow),
            ),
          );
        }),
      ),
    );
  }

  body() {
    const { make } = reelcache;
    const first = this.page * reelcache.PAGE_ROWS;
    const rows = this.rows.slice(first, first + reelcache.PAGE_ROWS);
    if (!rows.length) {
      return make(
        "tbody",
        {},
        make(
          "tr",
          {},
          make(
            "td",
            { colSpan: this.columns.length + 1, class: "empty" },
            this.all.length ? "No video passes these filters." : "There is no video in this cache.",
          ),
        ),
      );
    }
    return make("tbody", {}, ...rows.map((row) => this.row(row)));
  }

  row(row) {
    const { make, name } = reelcache;
    const c = this.table.columns;
    const opens = row < this.table.portraits;
    const link = (...inside) =>
      opens
        ? make("a", { href: reelcache.linkTo(c.id[row]) }, ...inside)
        : make("span", {}, ...inside);
    const picture = opens
      ? make("img", {
          loading: "lazy",
          decoding: "async",
          alt: "",
          src: reelcache.file(row, "-small.jpg"),
          onerror: (event) => event.target.remove(),
        })
      : null;
    const cells = this.columns.map((column) => {
      if (column.key !== "name") return make("td", { class: column.key }, column.cell(row));
      const folder = this.table.words[c.folder[row]];
      return make(
        "td",
        { class: "name" },
        link(name(c.name[row], { class: "file" })),
        this.badges(row),
        make("div", { class: "folder" }, name(folder || c.id[row])),
      );
    });
    return make(
      "tr",
      {
        class: opens ? "opens" : "",
        onclick: (event) => {
          if (opens && !event.target.closest("a, button"))
            location.hash = reelcache.linkTo(c.id[row]);
        },
      },
      make("td", { class: "picture" }, picture),
      ...cells,
    );
  }

  badges(row) {
    const { make, count } = reelcache;
    const c = this.table.columns;
    const badges = [];
    const add = (kind, text, title) =>
      badges.push(make("span", { class: `badge ${kind}`, title }, text));
    if (c.damage[row] & 1)
      add("warn", "truncated", "The file ends before its container says it does");
    if (c.damage[row] & 2) add("warn", "corrupt", "Decoding met damage");
    if (c.missing[row])
      add("bad", `${count(c.missing[row])} missing`, "Planned clips that are not there");
    if (c.copies[row])
      add(
        "plain",
        c.copies[row] === 1 ? "1 copy" : `${count(c.copies[row])} copies`,
        "Files of equal content",
      );
    if (c.cluster[row] >= 0) add("plain", `cluster ${c.cluster[row] + 1}`, "Of duplicates");
    return make("span", { class: "badges" }, ...badges);
  }

  pager(box) {
    const { make, count } = reelcache;
    const pages = Math.ceil(this.rows.length / reelcache.PAGE_ROWS);
    if (pages <= 1) {
      box.replaceChildren();
      return;
    }
    const go = (page, id) => () => {
      this.page = page;
      this.update();
      document.getElementById("videos-title").scrollIntoView({ block: "start" });
      const again = document.getElementById(id);
      if (again && !again.disabled) again.focus({ preventScroll: true });
    };
    const button = (id, text, page) =>
      make(
        "button",
        {
          type: "button",
          id,
          disabled: page < 0 || page >= pages || page === this.page,
          onclick: go(page, id),
        },
        text,
      );
    box.replaceChildren(
      button("page-first", "First", 0),
      button("page-back", "Back", this.page - 1),
      make("span", { class: "muted" }, `page ${count(this.page + 1)} of ${count(pages)}`),
      button("page-next", "Next", this.page + 1),
      button("page-last", "Last", pages - 1),
    );
  }
};
