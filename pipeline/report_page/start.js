// What is shown: the overview, or the video that the address names.
"use strict";

reelcache.App = class {
  constructor(data) {
    this.data = data;
    this.at = (id) => document.getElementById(id);
    this.numbers = new Map(data.videos.columns.id.map((id, number) => [id, number]));
    this.portraits = new Map(); // the last few that were opened
    this.wanted = null;
    this.at("cache-name").append(reelcache.name(data.cache.name));
    document.title = `${reelcache.shown(data.cache.name)} – Reelcache report`;
    this.at("recipe").replaceChildren(...reelcache.drawRecipe(data.cache));
    this.at("totals").replaceChildren(
      ...reelcache.drawTotals(data.cache, data.videos, data.rejects),
    );
    this.at("rejects").replaceChildren(...reelcache.drawRejects(data.rejects));
    this.table = new reelcache.Table(data, reelcache.charts(data.videos));
    this.table.update();
    this.drawClusters();
    this.listen();
    this.route();
  }

  listen() {
    const search = this.at("search");
    search.addEventListener("input", () => {
      this.table.words = search.value;
      this.table.refilter();
    });
    this.at("skip").addEventListener("click", (event) => {
      event.preventDefault();
      (this.at("overview").hidden
        ? this.at("video").querySelector("h1")
        : this.at("videos-title")
      ).focus();
    });
    window.addEventListener("hashchange", () => this.route());
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (!this.timeline || window.innerWidth === width) return;
      width = window.innerWidth;
      if (this.timeline.fitted) this.timeline.fit();
      else this.timeline.show();
    });
    document.addEventListener("keydown", (event) => {
      if (
        event.altKey ||
        event.ctrlKey ||
        event.metaKey ||
        event.target.closest("input, textarea, select")
      )
        return;
      if (event.key === "/") {
        // At once: what is hidden takes no focus.
        this.showOverview();
        location.hash = "#";
        this.at("search").focus();
        event.preventDefault();
      }
      if (this.at("video").hidden) return;
      const link = { n: "next", p: "previous", Escape: "back" }[event.key];
      if (link && this.at(link)) this.at(link).click();
    });
  }

  route() {
    const named = location.hash.startsWith("#video=") ? location.hash.slice(7) : null;
    let number;
    try {
      number = named === null ? undefined : this.numbers.get(decodeURIComponent(named));
    } catch {
      number = undefined;
    }
    if (number === undefined) {
      this.showOverview();
      return;
    }
    this.wanted = number;
    if (this.portraits.has(number)) {
      this.showVideo(number, this.portraits.get(number));
      return;
    }
    if (number >= this.data.videos.portraits) {
      this.showText(number, "This video is not in the report: it was made with --limit.");
      return;
    }
    const script = reelcache.make("script", { src: reelcache.file(number, ".js") });
    script.addEventListener("load", () => script.remove());
    script.addEventListener("error", () => {
      script.remove();
      if (this.wanted === number)
        this.showText(
          number,
          "The file of this video is missing: copy the whole folder of the report.",
        );
    });
    document.head.append(script);
  }

  took(number, portrait) {
    this.portraits.set(number, portrait);
    if (this.portraits.size > 20) this.portraits.delete(this.portraits.keys().next().value);
    if (this.wanted === number) this.showVideo(number, portrait);
  }

  showOverview() {
    const back = this.wanted;
    this.wanted = null;
    if (!this.at("overview").hidden) return; // nothing to go back from
    this.timeline = null;
    this.at("video").hidden = true;
    this.at("video").replaceChildren();
    this.at("overview").hidden = false;
    window.scrollTo(0, this.scroll || 0);
    if (back !== null) {
      const link = [...document.querySelectorAll("#videos a")].find(
        (a) => a.getAttribute("href") === reelcache.linkTo(this.data.videos.columns.id[back]),
      );
      if (link) link.focus({ preventScroll: true });
    }
  }

  openArticle() {
    if (!this.at("overview").hidden) this.scroll = window.scrollY;
    this.at("overview").hidden = true;
    this.at("video").hidden = false;
    window.scrollTo(0, 0);
  }

  showVideo(number, portrait) {
    this.openArticle();
    this.timeline = reelcache.drawVideo(this.at("video"), number, portrait, this);
  }

  showText(number, text) {
    this.openArticle();
    const c = this.data.videos.columns;
    this.at("video").replaceChildren(
      reelcache.make(
        "nav",
        { class: "video-nav" },
        reelcache.make("a", { class: "button", href: "#", id: "back" }, "← All videos"),
      ),
      reelcache.make("h1", {}, reelcache.name(c.name[number])),
      reelcache.make("p", { class: "empty" }, text),
    );
  }

  neighbours(number) {
    const rows = this.table.rows.filter(
      (row) => row < this.data.videos.portraits || row === number,
    );
    const place = rows.indexOf(number);
    const at = (i) => (place < 0 || i < 0 || i >= rows.length ? null : rows[i]);
    return [at(place - 1), at(place + 1)];
  }

  cluster(number) {
    const clusters = this.data.videos.columns.cluster;
    if (clusters[number] < 0) return [];
    return this.sortCluster(
      this.table.all.filter((row) => clusters[row] === clusters[number] && row !== number),
    );
  }

  // Of a copy: what it is of which one, or "".
  likeness(row) {
    const like = this.data.videos.columns.like[row];
    if (!like) return "";
    const [kind, score, start, end, ofStart, ofEnd] = like;
    if (start === undefined) return "the same bytes";
    const span = (from, to) => `${from.toFixed(1)}\u2013${to.toFixed(1)}`;
    return kind === "part"
      ? `part, ${score.toFixed(2)}: ${span(start, end)} s are ${span(ofStart, ofEnd)} s`
      : `copy, ${score.toFixed(2)}`;
  }

  clusterSize(rows) {
    const { count } = reelcache;
    const files = rows.reduce((sum, row) => sum + 1 + this.data.videos.columns.copies[row], 0);
    const videos = count(rows.length, "video");
    return files === rows.length ? videos : `${videos} in ${count(files, "file")}`;
  }

  // The kept one first, then the most alike.
  sortCluster(rows) {
    const { kept, like } = this.data.videos.columns;
    const rank = (row) => (kept[row] ? 2 : like[row] ? like[row][1] : 0);
    return rows.sort((a, b) => rank(b) - rank(a) || a - b);
  }

  drawClusters() {
    const { make, name, count } = reelcache;
    const { columns: c, portraits } = this.data.videos;
    const members = new Map();
    c.cluster.forEach((cluster, row) => {
      if (cluster >= 0) members.set(cluster, [...(members.get(cluster) || []), row]);
    });
    if (!members.size) return;
    const most = 50;
    const boxes = [...members]
      .sort((a, b) => b[1].length - a[1].length || a[0] - b[0])
      .slice(0, most)
      .map(([cluster, rows]) =>
        make(
          "div",
          { class: "card cluster" },
          make(
            "button",
            {
              type: "button",
              class: "quiet",
              onclick: () => {
                this.table.cluster = cluster;
                this.table.refilter();
                this.at("videos-title").scrollIntoView();
              },
            },
            `Cluster ${cluster + 1}: ${this.clusterSize(rows)}`,
          ),
          make(
            "div",
            { class: "cluster-videos" },
            ...this.sortCluster(rows)
              .slice(0, 24)
              .map((row) =>
                make(
                  "a",
                  { href: reelcache.linkTo(c.id[row]), class: c.kept[row] ? "kept" : "" },
                  row < portraits
                    ? make("img", {
                        src: reelcache.file(row, "-small.jpg"),
                        alt: "",
                        loading: "lazy",
                        onerror: (event) => event.target.remove(),
                      })
                    : null,
                  name(c.name[row]),
                  c.kept[row] ? make("span", { class: "badge good" }, "keep") : null,
                  make("small", {}, this.likeness(row)),
                ),
              ),
          ),
        ),
      );
    this.at("clusters").replaceChildren(
      make(
        "h2",
        {},
        "Duplicates ",
        make(
          "small",
          {},
          count(members.size, "cluster") + (members.size > most ? `, the largest ${most}` : ""),
        ),
      ),
      ...boxes,
    );
  }
};

reelcache.theme = function () {
  const names = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  let now = "auto";
  try {
    now = localStorage.getItem("reelcache-theme") || "auto";
  } catch {
    /* a browser that keeps nothing */
  }
  const set = (name) => {
    now = names.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = now;
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[now];
    if (reelcache.app && reelcache.app.timeline) reelcache.app.timeline.draw();
  };
  button.addEventListener("click", () => {
    set(names[(names.indexOf(now) + 1) % names.length]);
    try {
      localStorage.setItem("reelcache-theme", now);
    } catch {
      /* as above */
    }
  });
  set(now);
};
reelcache.theme();

// The scripts with data call these.
reelcache.take = (data) => {
  reelcache.app = new reelcache.App(data);
};
reelcache.open = (number, portrait) => reelcache.app.took(number, portrait);
window.addEventListener("load", () => {
  if (!reelcache.app)
    document
      .getElementById("main")
      .append(
        reelcache.make(
          "p",
          { class: "empty" },
          "The file data.js is missing or damaged: copy the whole folder of the report.",
        ),
      );
});
