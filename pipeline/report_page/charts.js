// Totals and distributions. Each bar is a button: it filters the videos.
"use strict";

reelcache.binned = function (name, title, edges, label, value) {
  // Column of numbers; edges are those of the bins, the last one open.
  const labels = edges.map((low, i) =>
    i + 1 < edges.length ? `${label(low)} to ${label(edges[i + 1])}` : `${label(low)} and more`,
  );
  const bin = (row) => {
    const number = value(row);
    if (number === null || number === undefined) return -1;
    let found = 0;
    while (found + 1 < edges.length && number >= edges[found + 1]) found++;
    return found;
  };
  return { name, title, kind: "columns", labels, ticks: edges.map(label), bin };
};

reelcache.listed = function (name, title, values, label, most) {
  // Column of words: the commonest ones, and the others together.
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  const order = [...counts].sort((a, b) => b[1] - a[1] || (label(a[0]) < label(b[0]) ? -1 : 1));
  const kept = order.slice(0, order.length > most ? most - 1 : most).map(([value]) => value);
  const labels = kept.map(label);
  if (order.length > kept.length) labels.push(`${order.length - kept.length} others`);
  const numbers = new Map(kept.map((value, i) => [value, i]));
  return {
    name,
    title,
    kind: "rows",
    labels,
    bin: (row) => (numbers.has(values[row]) ? numbers.get(values[row]) : kept.length),
  };
};

reelcache.charts = function (table) {
  const { columns, words } = table;
  const share = (value) => value.toFixed(1).replace("1.0", "1");
  const tenths = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
  const charts = [];
  const add = (chart, values) => {
    if (!values || values.some((value) => value !== null)) charts.push(chart);
  };
  const numbers = (name, title, edges, label) =>
    add(
      reelcache.binned(name, title, edges, label, (row) => columns[name][row]),
      columns[name],
    );
  const shares = (name, title) => {
    const chart = reelcache.binned(name, title, tenths, share, (row) => columns[name][row]);
    chart.labels[9] = "0.9 to 1";
    add(chart, columns[name]);
  };
  numbers("seconds", "Duration", [0, 1, 5, 10, 30, 60, 300, 1800, 3600], (s) =>
    s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : `${s / 3600} h`,
  );
  numbers("fps", "Frame rate", [0, 10, 20, 24, 25, 29, 31, 49, 59], (f) => `${f}`);
  const tokens = reelcache.logEdges(columns.tokens);
  numbers("tokens", "Tokens of a video", tokens, (n) => reelcache.short(n));
  const shapes = columns.width.map((w, i) => (w ? `${w} × ${columns.height[i]}` : "unknown"));
  add(reelcache.listed("shape", "Picture", shapes, (s) => s, 7));
  const sound = columns.sound.map((s) => (s === null ? "unknown" : s ? "with sound" : "without"));
  add(reelcache.listed("sound", "Sound", sound, (s) => s, 3));
  add(reelcache.listed("codec", "Codec", columns.codec, (c) => words[c] || "unknown", 7));
  const damage = columns.damage.map((bits, i) =>
    bits & 2 ? "corrupt" : bits & 1 ? "truncated" : columns.missing[i] ? "clips missing" : "whole",
  );
  add(reelcache.listed("damage", "Damage", damage, (d) => d, 4));
  shares("brightness", "Brightness");
  shares("static", "Standing still");
  shares("blur", "Blur");
  numbers(
    "loudness",
    "Loudness, dB",
    [-100, -60, -50, -40, -30, -25, -20, -15, -10],
    (d) => `${d}`,
  );
  return charts;
};

reelcache.logEdges = function (values) {
  const largest = values.reduce((a, b) => Math.max(a, b), 1);
  const smallest = Math.max(
    1,
    values.reduce((a, b) => Math.min(a, b), Infinity),
  );
  const all = [];
  for (let power = Math.floor(Math.log10(smallest)); 10 ** power <= largest; power++) {
    for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
  }
  const edges = all.filter((edge, i) => edge <= largest && (all[i + 1] || Infinity) > smallest);
  while (edges.length > 10)
    edges.splice(1, edges.length - 1, ...edges.slice(1).filter((_, i) => i % 2));
  return edges.length ? edges : [smallest];
};

reelcache.drawChart = function (chart, all, kept, chosen, choose) {
  // `all` and `kept` are rows of the table; `kept` pass the other filters.
  const { make, count } = reelcache;
  const totals = new Array(chart.labels.length).fill(0);
  const now = totals.slice();
  for (const row of all) {
    const i = chart.bin(row);
    if (i >= 0) totals[i]++;
  }
  for (const row of kept) {
    const i = chart.bin(row);
    if (i >= 0) now[i]++;
  }
  const largest = Math.max(1, ...totals);
  const bars = chart.labels.map((label, i) => {
    const part = `${(100 * now[i]) / largest}%`;
    const whole = `${(100 * totals[i]) / largest}%`;
    const side = chart.kind === "columns" ? "height" : "width";
    const least = now[i] ? "2px" : "0";
    const minimum = chart.kind === "columns" ? { minHeight: least } : { minWidth: least };
    return make(
      "button",
      {
        type: "button",
        class: "bar",
        disabled: totals[i] === 0,
        "aria-pressed": String(chosen === i),
        title: `${label}: ${count(now[i], "video")}`,
        "aria-label": `${chart.title} ${label}: ${count(now[i], "video")}`,
        onclick: () => choose(chosen === i ? null : i),
      },
      chart.kind === "rows" ? make("span", { class: "bar-name" }, reelcache.name(label)) : null,
      make(
        "span",
        { class: "bar-track" },
        make("span", { class: "bar-all", style: { [side]: whole } }),
        make("span", { class: "bar-now", style: { [side]: part, ...minimum } }),
      ),
      chart.kind === "rows" ? make("span", { class: "bar-count" }, count(now[i])) : null,
    );
  });
  const box = make(
    "div",
    { class: `card chart ${chart.kind}` },
    make("h3", {}, chart.title),
    make("div", { class: "bars" }, ...bars),
  );
  if (chart.kind === "columns") {
    box.append(
      make(
        "div",
        { class: "ticks", "aria-hidden": "true" },
        ...reelcache.sparse(chart.ticks).map((tick) => make("span", {}, tick)),
      ),
    );
  }
  return box;
};

// As many labels as fit beneath the columns of a chart.
reelcache.sparse = function (ticks) {
  const room = 230 / ticks.length;
  const longest = Math.max(...ticks.map((tick) => tick.length));
  const step = Math.max(1, Math.ceil((longest * 6.5 + 4) / room));
  return ticks.map((tick, i) => (i % step ? "" : tick));
};

reelcache.drawTotals = function (cache, table, rejects) {
  const { make, count, short } = reelcache;
  const { columns } = table;
  const sum = (name) => columns[name].reduce((a, b) => a + b, 0);
  const seconds = sum("seconds");
  const heard = columns.sound.filter((sound) => sound).length;
  const videos = columns.id.length;
  const tiles = [
    ["videos", count(videos), `of ${count(cache.sources, "source")}`],
    [
      "duration",
      reelcache.duration(seconds),
      videos ? `${reelcache.duration(seconds / videos)} on average` : "",
    ],
    [
      "clips",
      short(sum("clips")),
      cache.missing ? `${count(cache.missing)} missing` : "none missing",
    ],
    ["frames", short(sum("frames")), `${cache.fps} a second`],
    ["tokens", short(sum("tokens")), `${count(cache.tokens_per_clip)} a clip`],
    [
      "bytes",
      reelcache.bytes(sum("bytes")),
      seconds ? `${reelcache.bytes((sum("bytes") / seconds) * 3600)} an hour` : "",
    ],
    ["sound", videos ? reelcache.percent(heard / videos) : "none", "of videos have a track"],
    [
      "rejected",
      count(rejects.count),
      !rejects.count
        ? "every source is cached"
        : rejects.retryable
          ? `${count(rejects.retryable)} may succeed later`
          : "for good",
    ],
  ];
  return tiles.map(([name, value, note]) =>
    make(
      "div",
      { class: "tile" },
      make("div", { class: "tile-name" }, name),
      make("div", { class: "tile-value" }, value),
      make("div", { class: "tile-note" }, note),
    ),
  );
};

reelcache.drawRecipe = function (cache) {
  const { make, name } = reelcache;
  const chip = (...parts) => make("span", { class: "chip still" }, ...parts);
  const chips = [
    chip("recipe ", name(cache.recipe)),
    chip(`${cache.fps} fps, ${cache.frames_per_clip} frames a clip`),
    ...cache.streams.map((stream) =>
      chip(
        make("b", {}, name(stream.name)),
        " ",
        name(stream.encoder),
        ` ${stream.shape.join(" × ")} ${stream.dtype}`,
      ),
    ),
  ];
  if (cache.audio) chips.push(chip(make("b", {}, "audio"), " ", name(cache.audio.encoder)));
  chips.push(chip(make("code", {}, cache.fingerprint.slice(0, 8))));
  return chips;
};
