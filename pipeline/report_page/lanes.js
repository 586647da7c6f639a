// The lanes of a time line, from pictures to events. Only what is in sight is in the document, so
// hours are no heavier than seconds.
"use strict";

Object.assign(reelcache.Timeline.prototype, {
  // name, note and height of a lane; `draw(element, from, to)` shows what lies between two x.
  lane(name, note, height, draw, kind) {
    const { make } = reelcache;
    const element = make("div", { class: `lane ${kind}`, style: { height: `${height}px` } });
    this.world.append(element);
    this.labels.append(
      make(
        "div",
        {
          class: "lane-label",
          style: { height: `${height}px` },
          title: note ? `${reelcache.shown(name)}: ${reelcache.shown(note)}` : null,
        },
        reelcache.name(name, { class: "lane-name" }),
        note && height >= 48 ? reelcache.name(note, { class: "lane-note" }) : null,
      ),
    );
    this.lanes.push({ element, draw, kind });
    return element;
  },

  addLanes() {
    const d = this.data;
    this.lane("", "", 24, (e, a, b) => this.drawRuler(e, a, b), "ruler");
    const some =
      d.chosen.length < d.starts.length
        ? `${d.chosen.length} of ${reelcache.count(d.starts.length, "clip")}`
        : "";
    if (d.sheet)
      this.lane(
        "pictures",
        some,
        reelcache.HEIGHT,
        (e, a, b) => this.drawPictures(e, a, b),
        "pictures",
      );
    for (const map of d.maps) {
      const few =
        map.mapped.length < d.starts.length
          ? `, ${map.mapped.length} of ${reelcache.count(d.starts.length, "clip")}`
          : "";
      this.lane(
        map.stream,
        `${map.encoder}, ${map.rows} × ${map.columns} cells${few}`,
        reelcache.HEIGHT,
        (e, a, b) => this.drawMaps(e, a, b, map),
        "maps",
      );
    }
    this.lane("clips", "", 22, (e, a, b) => this.drawClips(e, a, b), "clips");
    if (d.picture_change && d.picture_change.length)
      this.heatLane(
        "Δ picture",
        "how much brightness changes from frame to frame, of 1",
        d.picture_change,
      );
    for (const map of d.maps) {
      if (map.change.length)
        this.heatLane(
          `Δ ${map.stream}`,
          "1 - cosine of the mean features, from grid to grid",
          map.change,
        );
    }
    if (d.static)
      this.areaLane(
        "motion",
        "share of the picture that moves",
        d.static.map((s) => (s === null ? null : 1 - s)),
        0,
        1,
        30,
      );
    if (d.brightness)
      this.lane("brightness", "", 14, (e, a, b) => this.drawBrightness(e, a, b), "canvas");
    if (!d.sound) this.textLane("sound", "no sound in this cache");
    else if (d.loudness)
      this.areaLane("sound", "loudness, -60 to 0 dB", d.loudness, -60, 0, 36, d.sound);
    else if (d.sound.energies.some(([, values]) => values.some((v) => v !== null)))
      this.areaLane("sound", "energy", null, -60, 0, 36, d.sound);
    else this.textLane("sound", "nothing is heard in this video");
    const kinds = [...new Set(d.events.map((event) => event[2]))];
    for (const kind of kinds)
      this.eventLane(
        kind,
        d.events.filter((event) => event[2] === kind),
      );
  },

  textLane(name, text) {
    this.lane(
      name,
      "",
      22,
      (element) => {
        if (!element.firstChild)
          element.append(reelcache.make("span", { class: "lane-text" }, text));
      },
      "text",
    );
  },

  heatLane(name, note, changes) {
    const sorted = changes.map((change) => change[2]).sort((a, b) => a - b);
    const high = Math.max(
      1e-4,
      sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.98))],
    );
    this.lane(
      name,
      `${note}; brightest is ${high.toPrecision(2)} and more`,
      22,
      (e, from, to) => {
        const g = this.canvas(e, from, to);
        // The greatest of a pixel is shown: a cut in an hour is seen.
        const first = Math.floor(from),
          shares = new Float32Array(Math.ceil(to) - first).fill(-1);
        for (const [start, end, value] of changes) {
          const a = Math.max(0, Math.round(this.x(start)) - first);
          const b = Math.min(shares.length, Math.max(a + 1, Math.round(this.x(end)) - first));
          for (let x = a; x < b; x++) shares[x] = Math.max(shares[x], value / high);
        }
        for (let a = 0, b; a < shares.length; a = b) {
          for (b = a + 1; b < shares.length && shares[b] === shares[a];) b++;
          if (shares[a] < 0) continue;
          g.fillStyle = reelcache.heat(shares[a]);
          g.fillRect(a, 0, b - a, 22);
        }
      },
      "canvas",
    );
    (this.heats ||= []).push([name, changes]);
  },

  areaLane(name, note, values, low, high, height, sound) {
    const d = this.data;
    this.lane(
      name,
      note,
      height,
      (e, from, to) => {
        const g = this.canvas(e, from, to);
        const style = getComputedStyle(this.element);
        const bar = (a, right, share) => {
          const b = Math.min(right, this.x(this.end));
          if (b <= a) return;
          const size = Math.max(1, share * (height - 2));
          g.fillRect(a - from, height - size, Math.max(1, b - a - (b - a > 4 ? 1 : 0)), size);
        };
        if (values) {
          g.fillStyle = style.getPropertyValue(sound ? "--bar-soft" : "--bar");
          for (
            let i = this.firstClip(from);
            i < d.starts.length && this.x(d.starts[i]) <= to;
            i++
          ) {
            if (values[i] === null) continue;
            bar(
              this.x(d.starts[i]),
              this.x(d.ends[i]),
              Math.min(1, Math.max(0, (values[i] - low) / (high - low))),
            );
          }
        }
        if (sound) {
          const top = this.fullScale(sound);
          g.fillStyle = style.getPropertyValue("--bar");
          for (const [start, energies] of sound.energies) {
            energies.forEach((value, i) => {
              const a = this.x(start + i * sound.step),
                b = this.x(start + (i + 1) * sound.step);
              if (value === null || b < from || a > to) return;
              bar(a, b, Math.min(1, Math.max(0, 1 + (value - top) / 60)));
            });
          }
        }
      },
      "canvas",
    );
  },

  fullScale(sound) {
    // Energies are decibels up to a constant: the loudness of clips tells it, else the loudest is the top.
    const d = this.data,
      tops = [];
    let loudest = -Infinity;
    sound.energies.forEach(([, values], place) => {
      const heard = values.filter((value) => value !== null);
      for (const value of heard) loudest = Math.max(loudest, value);
      const loudness = d.loudness && d.loudness[d.chosen[sound.places[place]]];
      if (!heard.length || loudness === null || loudness === undefined) return;
      const power = heard.reduce((sum, value) => sum + 10 ** (value / 10), 0) / heard.length;
      tops.push(10 * Math.log10(power) - loudness);
    });
    tops.sort((a, b) => a - b);
    return tops.length ? tops[tops.length >> 1] : loudest;
  },

  eventLane(kind, events) {
    // Events that overlap lie one below the other, in three lines at the most.
    const lines = [];
    const placed = events.map((event) => {
      let line = lines.findIndex((end) => end <= event[0] + 1e-6);
      if (line < 0) line = lines.length < 3 ? lines.push(0) - 1 : 2;
      lines[line] = Math.max(event[1], lines[line]);
      return { event, line };
    });
    this.lane(
      kind,
      "",
      24 * lines.length,
      (element, from, to) => {
        const nodes = [];
        placed.forEach(({ event, line }, i) => {
          const [start, end, , text, score] = event;
          const a = this.x(start),
            b = Math.max(this.x(end), a + 2);
          if (b < from || a > to) return;
          const words =
            b - a < 20 ? "" : text || (b - a > 60 ? reelcache.duration(end - start) : "");
          const sure = score === null ? "" : `, ${reelcache.percent(score)} sure`;
          const left = Math.max(a, from - 4000),
            right = Math.min(b, to + 4000);
          nodes.push(
            reelcache.make(
              "div",
              {
                class: `event${i % 2 ? " odd" : ""}${b - a < 8 ? " narrow" : ""}`,
                title: `${kind} ${reelcache.exact(start)} to ${reelcache.exact(end)}${sure}\n${reelcache.shown(text)}`,
                style: { left: `${left}px`, width: `${right - left}px`, top: `${24 * line + 2}px` },
              },
              reelcache.name(words, { style: { position: "sticky", left: "6px" } }),
            ),
          );
        });
        element.replaceChildren(...nodes);
      },
      "events",
    );
  },

  canvas(element, from, to) {
    const width = to - from,
      height = element.clientHeight,
      dense = window.devicePixelRatio || 1;
    let canvas = element.firstChild;
    if (!canvas) {
      canvas = reelcache.make("canvas");
      element.append(canvas);
    }
    canvas.width = Math.ceil(width * dense);
    canvas.height = Math.ceil(height * dense);
    Object.assign(canvas.style, { left: `${from}px`, width: `${width}px`, height: `${height}px` });
    const g = canvas.getContext("2d");
    g.scale(dense, dense);
    return g;
  },

  firstClip(x) {
    // The first clip that ends after x.
    let low = 0,
      high = this.data.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x(this.data.ends[middle]) < x) low = middle + 1;
      else high = middle;
    }
    return low;
  },

  drawRuler(element, from, to) {
    const steps = [
      0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200,
      21600, 86400,
    ];
    const step = steps.find((one) => one * this.scale >= 72) || 86400;
    const nodes = [];
    for (let k = Math.ceil(this.time(from) / step - 1e-9); k * step <= this.time(to) + 1e-9; k++) {
      if (k * step < this.start - step || k * step > this.end + 1e-9) continue;
      const x = this.x(k * step);
      if (x < 0) continue;
      const last = x + 64 > this.world.clientWidth;
      if (last && nodes.length && step * this.scale < 112) nodes[nodes.length - 1].textContent = "";
      nodes.push(
        reelcache.make(
          "span",
          { class: last ? "tick last" : "tick", style: { left: `${x}px` } },
          reelcache.clock(k * step, step),
        ),
      );
    }
    element.replaceChildren(...nodes);
  },

  // Those of `items` ({start, end, limit}) that have room, with the x where each must stop.
  thin(items) {
    const shown = [];
    for (const item of items) {
      const x = this.x(item.start),
        before = shown[shown.length - 1];
      if (before && x < before.x + reelcache.LEAST_WIDTH - 0.01) continue;
      if (before) before.stop = Math.min(before.stop, x);
      shown.push({ item, x, stop: x + this.frameWidth });
    }
    for (const one of shown) {
      for (const [start] of this.data.gaps) {
        if (start >= one.item.start + 1e-6)
          one.stop = Math.min(one.stop, Math.max(this.x(start), one.x + 4));
      }
    }
    return shown;
  },

  drawPictures(element, from, to) {
    const d = this.data,
      items = [];
    d.frames.forEach((frame, place) => {
      if (!d.sheet.there[place]) return;
      frame.times
        .slice(0, frame.real)
        .forEach(([start, end], column) => items.push({ start, end, place, column }));
    });
    element.replaceChildren(
      ...this.thin(items)
        .filter(({ x, stop }) => stop >= from && x <= to)
        .map(({ item, x, stop }) => {
          const box = reelcache.make("div", {
            class: "frame",
            style: { left: `${x}px`, width: `${stop - x}px` },
          });
          box.dataset.start = item.start;
          box.dataset.clip = d.chosen[item.place];
          reelcache.cell(box, {
            url: reelcache.file(this.number, ".jpg"),
            columns: d.sheet.frames,
            rows: d.chosen.length,
            width: d.sheet.width,
            height: d.sheet.height,
            column: item.column,
            row: item.place,
            scaleX: 1,
            scaleY: 1,
          });
          this.centre(box, stop - x);
          return box;
        }),
    );
  },

  centre(box, width) {
    // Of a picture that is cut, the middle is shown.
    const [left, top] = box.style.backgroundPosition.split(" ").map(parseFloat);
    box.style.backgroundPosition = `${left - Math.max(0, (this.frameWidth - width) / 2)}px ${top}px`;
  },

  drawMaps(element, from, to, map) {
    const d = this.data,
      items = [],
      stride = Math.max(1, Math.floor(d.frames[0].times.length / map.grids));
    map.mapped.forEach((place, row) => {
      const frame = d.frames[place];
      for (let grid = 0; grid * stride < frame.real; grid++)
        items.push({ start: frame.times[grid * stride][0], row, column: grid });
    });
    element.replaceChildren(
      ...this.thin(items)
        .filter(({ x, stop }) => stop >= from && x <= to)
        .map(({ item, x, stop }) => {
          const box = reelcache.make("div", {
            class: "frame cells",
            style: { left: `${x}px`, width: `${stop - x}px` },
          });
          reelcache.cell(box, {
            url: map.png,
            columns: map.grids,
            rows: map.mapped.length,
            width: map.columns,
            height: map.rows,
            column: item.column,
            row: item.row,
            scaleX: this.frameWidth / map.columns,
            scaleY: reelcache.HEIGHT / map.rows,
          });
          this.centre(box, stop - x);
          return box;
        }),
    );
  },

  drawClips(element, from, to) {
    const { make } = reelcache;
    const d = this.data,
      nodes = [];
    const damaged = new Set(d.damaged);
    let i = this.firstClip(from);
    while (i < d.starts.length && this.x(d.starts[i]) <= to) {
      // Clips that are too narrow to be told apart become one block.
      let last = i;
      while (
        last + 1 < d.starts.length &&
        this.x(d.ends[last]) - this.x(d.starts[i]) < 5 &&
        Math.abs(d.starts[last + 1] - d.ends[last]) < 1e-3 &&
        damaged.has(last + 1) === damaged.has(i)
      )
        last++;
      const a = this.x(d.starts[i]),
        b = this.x(d.ends[last]);
      const what = last > i ? `clips ${d.number[i]} to ${d.number[last]}` : `clip ${d.number[i]}`;
      const box = make(
        "div",
        {
          class: `clip${damaged.has(i) ? " damaged" : ""}`,
          title: `${what}: ${reelcache.exact(d.starts[i])} to ${reelcache.exact(d.ends[last])}`,
          style: { left: `${a}px`, width: `${Math.max(1, b - a - (b - a > 4 ? 1 : 0))}px` },
        },
        b - a > 28 ? String(d.number[i]) : "",
      );
      box.dataset.clip = i;
      nodes.push(box);
      i = last + 1;
    }
    for (const [start, end, reason, count] of d.gaps) {
      const a = this.x(start),
        b = this.x(end);
      if (b < from || a > to) continue;
      nodes.push(
        make(
          "div",
          {
            class: "gap",
            title: `${reelcache.count(count, "clip")} missing: ${reason}, ${reelcache.exact(start)} to ${reelcache.exact(end)}`,
            style: { left: `${a}px`, width: `${Math.max(3, b - a - 1)}px` },
          },
          b - a > 70 ? `${count} missing: ${reason}` : "",
        ),
      );
    }
    element.replaceChildren(...nodes);
  },

  drawBrightness(element, from, to) {
    const d = this.data,
      g = this.canvas(element, from, to);
    for (let i = this.firstClip(from); i < d.starts.length && this.x(d.starts[i]) <= to; i++) {
      if (d.brightness[i] === null) continue;
      const level = Math.round(255 * d.brightness[i]);
      g.fillStyle = `rgb(${level},${level},${level})`;
      g.fillRect(
        this.x(d.starts[i]) - from,
        0,
        Math.max(1, this.x(d.ends[i]) - this.x(d.starts[i])),
        14,
      );
    }
  },
});
