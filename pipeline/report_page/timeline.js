// The time line of a video: everything lies at its true time, x = (t - start) * pixels a second.
// Here are its scale, what is chosen and what keys and mouse do; lanes.js draws.
"use strict";

reelcache.HEIGHT = 64; // of pictures and maps
reelcache.LEAST_WIDTH = 22; // of a picture that is shown
reelcache.GUTTER = 12; // pixels before the start and after the end

// Dark violet over red to pale yellow; as of matplotlib's inferno.
reelcache.HEAT = [
  [0, 0, 4],
  [31, 12, 72],
  [85, 15, 109],
  [136, 34, 106],
  [186, 54, 85],
  [227, 89, 51],
  [249, 140, 10],
  [249, 201, 50],
  [252, 255, 164],
];

reelcache.heat = function (share) {
  const place = Math.min(1, Math.max(0, share)) * (reelcache.HEAT.length - 1);
  const low = Math.min(reelcache.HEAT.length - 2, Math.floor(place));
  const mix = (i) =>
    Math.round(
      reelcache.HEAT[low][i] +
        (reelcache.HEAT[low + 1][i] - reelcache.HEAT[low][i]) * (place - low),
    );
  return `rgb(${mix(0)},${mix(1)},${mix(2)})`;
};

reelcache.file = (number, suffix) => `videos/${String(number).padStart(6, "0")}${suffix}`;
reelcache.linkTo = (id) => `#video=${encodeURIComponent(id)}`;

// One cell of a sheet of equal pictures, as a background: `scale` times its size.
reelcache.cell = function (
  element,
  { url, columns, rows, width, height, column, row, scaleX, scaleY },
) {
  const [w, h] = [width * scaleX, height * scaleY];
  element.style.backgroundImage = `url("${url}")`;
  element.style.backgroundSize = `${columns * w}px ${rows * h}px`;
  element.style.backgroundPosition = `${-column * w}px ${-row * h}px`;
  return element;
};

reelcache.Timeline = class {
  constructor(portrait, number, onselect) {
    this.data = portrait;
    this.number = number;
    this.onselect = onselect;
    this.selected = 0;
    // Not as far as events reach: times of events are of anyone, and may be years.
    const ends = [portrait.end, ...portrait.gaps.map((gap) => gap[1])];
    const starts = [portrait.start, ...portrait.gaps.map((gap) => gap[0])];
    for (const frame of portrait.frames) {
      starts.push(frame.times[0][0]);
      ends.push(frame.times[Math.max(0, frame.real - 1)][1]);
    }
    this.start = starts.reduce((a, b) => Math.min(a, b));
    this.end = Math.max(
      this.start + 0.04,
      ends.reduce((a, b) => Math.max(a, b)),
    );
    this.frameWidth = portrait.sheet ? portrait.sheet.width : reelcache.HEIGHT;
    this.lanes = [];
    this.build();
  }

  x(seconds) {
    return reelcache.GUTTER + (seconds - this.start) * this.scale;
  }
  time(x) {
    return this.start + (x - reelcache.GUTTER) / this.scale;
  }

  build() {
    const { make } = reelcache;
    this.labels = make("div", { class: "tl-labels" });
    this.world = make("div", { class: "tl-world" });
    this.hair = make("div", { class: "tl-hair", hidden: true });
    this.mark = make("div", { class: "tl-mark" });
    this.world.append(this.mark, this.hair);
    this.view = make(
      "div",
      {
        class: "tl-view",
        tabIndex: 0,
        role: "group",
        "aria-label": "Time line; left and right choose a clip, plus and minus change the scale",
      },
      this.world,
    );
    this.readout = make("output", { class: "tl-readout muted" });
    const button = (text, label, act) =>
      make("button", { type: "button", title: label, "aria-label": label, onclick: act }, text);
    this.tools = make(
      "div",
      { class: "tl-tools" },
      button("−", "Smaller scale", () => this.zoom(0.5)),
      button("+", "Larger scale", () => this.zoom(2)),
      button("Whole", "The whole video", () => this.fit()),
      button("Every frame", "So that every frame is seen whole", () => this.natural()),
      make("span", { class: "spacer" }),
      this.readout,
    );
    this.element = make(
      "div",
      { class: "card timeline" },
      this.tools,
      make("div", { class: "tl-body" }, this.labels, this.view),
    );
    this.addLanes();
    this.view.addEventListener("scroll", () => this.later());
    this.view.addEventListener("keydown", (event) => this.key(event));
    this.world.addEventListener("click", (event) => this.click(event));
    this.world.addEventListener("pointermove", (event) => this.hover(event));
    this.world.addEventListener("pointerleave", () => {
      this.hair.hidden = true;
      this.say();
    });
    this.view.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(
          event.deltaY < 0 ? 1.25 : 0.8,
          event.clientX - this.view.getBoundingClientRect().left,
        );
      },
      { passive: false },
    );
  }

  show() {
    // Once it is in the document and has a width.
    if (this.scale === undefined) this.fit();
    else this.rescale(this.scale);
  }

  get room() {
    return Math.max(200, this.view.clientWidth - 2 * reelcache.GUTTER);
  }
  get least() {
    return this.room / (this.end - this.start);
  }

  fit() {
    this.fitted = true;
    this.rescale(this.least);
  }

  natural() {
    // Such that the closest two frames do not cover each other.
    let gap = Infinity;
    for (const frame of this.data.frames) {
      for (let i = 1; i < frame.real; i++)
        gap = Math.min(gap, frame.times[i][0] - frame.times[i - 1][0]);
    }
    if (!Number.isFinite(gap) || gap <= 0)
      gap = Math.max(0.04, this.data.ends[0] - this.data.starts[0]);
    this.fitted = false;
    this.rescale(
      Math.max(this.least, (this.frameWidth + 2) / gap),
      this.data.starts[this.selected],
    );
  }

  zoom(factor, at) {
    const x = at === undefined ? this.view.clientWidth / 2 : at;
    const time = this.time(this.view.scrollLeft + x);
    this.fitted = this.scale * factor <= this.least;
    this.rescale(Math.max(this.least, this.scale * factor), time, x);
  }

  rescale(scale, time, at) {
    const most = 2e7 / (this.end - this.start); // what a browser can scroll over
    this.scale = Math.min(scale, Math.max(this.least, most), 20000);
    this.world.style.width = `${(this.end - this.start) * this.scale + 2 * reelcache.GUTTER}px`;
    if (time !== undefined)
      this.view.scrollLeft = this.x(time) - (at === undefined ? this.view.clientWidth / 3 : at);
    this.draw();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const from = Math.max(0, this.view.scrollLeft - 200);
    const to = Math.min(this.world.clientWidth, this.view.scrollLeft + this.view.clientWidth + 200);
    for (const lane of this.lanes) lane.draw(lane.element, from, to);
    this.drawMark();
  }

  drawMark() {
    const d = this.data,
      a = this.x(d.starts[this.selected]),
      b = this.x(d.ends[this.selected]);
    Object.assign(this.mark.style, { left: `${a - 1}px`, width: `${Math.max(4, b - a)}px` });
  }

  clipAt(seconds) {
    const d = this.data;
    let found = this.firstClip(this.x(seconds) + 1e-9);
    if (found > 0 && (found >= d.starts.length || d.starts[found] > seconds)) {
      const after = found < d.starts.length ? d.starts[found] - seconds : Infinity;
      if (seconds - d.ends[found - 1] < after) found--;
    }
    return Math.min(found, d.starts.length - 1);
  }

  select(clip, inSight) {
    this.selected = Math.min(this.data.starts.length - 1, Math.max(0, clip));
    this.drawMark();
    if (inSight) {
      const a = this.x(this.data.starts[this.selected]),
        b = this.x(this.data.ends[this.selected]);
      if (a < this.view.scrollLeft || b > this.view.scrollLeft + this.view.clientWidth)
        this.view.scrollLeft = a - this.view.clientWidth / 3;
    }
    this.onselect(this.selected);
  }

  click(event) {
    const box = event.target.closest("[data-clip]");
    const seconds = this.time(event.clientX - this.world.getBoundingClientRect().left);
    this.select(
      box && !box.classList.contains("clip") ? Number(box.dataset.clip) : this.clipAt(seconds),
    );
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[
      event.key
    ];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (step !== undefined) this.select(this.selected + step, true);
    else if (event.key === "+" || event.key === "=") this.zoom(2);
    else if (event.key === "-") this.zoom(0.5);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  hover(event) {
    const x = event.clientX - this.world.getBoundingClientRect().left;
    this.hair.hidden = false;
    this.hair.style.left = `${x}px`;
    this.say(this.time(x));
  }

  say(seconds) {
    if (seconds === undefined) {
      this.readout.textContent = "";
      return;
    }
    const d = this.data,
      clip = this.clipAt(seconds),
      parts = [reelcache.exact(seconds)];
    const gap = d.gaps.find(([start, end]) => start <= seconds && seconds < end);
    if (gap) parts.push(`missing: ${gap[2]}`);
    else if (d.starts[clip] <= seconds && seconds < d.ends[clip])
      parts.push(`clip ${d.number[clip]}`);
    for (const [name, changes] of this.heats || []) {
      const change = changes.find(([start, end]) => start <= seconds && seconds < end);
      if (change) parts.push(`${reelcache.shown(name)} ${change[2].toPrecision(2)}`);
    }
    if (d.loudness && d.loudness[clip] !== null) parts.push(`${d.loudness[clip].toFixed(0)} dB`);
    this.readout.textContent = parts.join("   ");
  }
};
