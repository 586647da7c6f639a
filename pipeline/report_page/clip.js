// One clip: its frames, large, with each encoder's maps beneath, and what is known of it.
"use strict";

reelcache.drawClip = function (box, portrait, number, clip, cache, choose) {
  const { make, count, name, exact } = reelcache;
  const d = portrait;
  const key = `${d.key}_${String(d.number[clip]).padStart(6, "0")}`;
  const place = d.chosen.indexOf(clip);
  const title = make(
    "h2",
    {},
    `Clip ${d.number[clip]} `,
    make("small", {}, `${exact(d.starts[clip])} to ${exact(d.ends[clip])}`),
  );
  const facts = [["key", make("code", {}, key)]];
  const share = (title, values) => {
    if (values && values[clip] !== null) facts.push([title, values[clip].toFixed(3)]);
  };
  share("brightness", d.brightness);
  share("black", d.black);
  share("standing still", d.static);
  share("blur", d.blur);
  if (d.loudness)
    facts.push([
      "loudness",
      d.loudness[clip] === null ? "nothing is heard" : `${d.loudness[clip].toFixed(1)} dB`,
    ]);
  if (place >= 0) {
    const frame = d.frames[place],
      fill = frame.times.length - frame.real;
    facts.push(["frames", `${frame.real}${fill ? `, and ${fill} that fill the clip` : ""}`]);
  }
  const list = make(
    "dl",
    { class: "facts" },
    ...facts.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value))),
  );
  const look = make(
    "p",
    { class: "muted" },
    make("code", {}, `pipeline inspect ${reelcache.quoted(`${cache.name}::${key}`)}`),
  );
  if (place < 0) {
    const nearest = d.chosen.reduce((a, b) => (Math.abs(b - clip) < Math.abs(a - clip) ? b : a));
    box.replaceChildren(
      title,
      list,
      make(
        "p",
        { class: "empty" },
        `The report has pictures of ${d.chosen.length} of ${count(d.starts.length, "clip")}, chosen evenly; of this one it has numbers only. `,
        make(
          "button",
          { type: "button", onclick: () => choose(nearest) },
          `Clip ${d.number[nearest]} has pictures`,
        ),
      ),
      look,
    );
    return;
  }
  const frame = d.frames[place];
  const own = { ...d.json.common, ...d.json.own[place] };
  box.replaceChildren(
    title,
    reelcache.clipGrid(d, number, place),
    list,
    look,
    make(
      "details",
      {},
      make("summary", {}, "JSON of the sample"),
      make(
        "pre",
        {},
        reelcache.shownLines(
          JSON.stringify(Object.fromEntries(Object.entries(own).sort()), null, 2),
        ),
      ),
    ),
    make(
      "details",
      {},
      make("summary", {}, "Times of the frames"),
      make(
        "table",
        { class: "plain numbers" },
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            ...["Frame", "Start", "End", ""].map((text) => make("th", { scope: "col" }, text)),
          ),
        ),
        make(
          "tbody",
          {},
          ...frame.times.map(([start, end], i) =>
            make(
              "tr",
              {},
              make("td", {}, String(i)),
              make("td", {}, exact(start)),
              make("td", {}, exact(end)),
              make("td", {}, i < frame.real ? "" : "fill"),
            ),
          ),
        ),
      ),
    ),
  );
};

reelcache.shownLines = (text) => text.split("\n").map(reelcache.shown).join("\n");
reelcache.quoted = (text) =>
  /^[\w@%+=:,./-]+$/.test(text) ? text : `'${reelcache.shown(text).replaceAll("'", `'"'"'`)}'`;

reelcache.clipGrid = function (d, number, place) {
  const { make, name } = reelcache;
  const frame = d.frames[place],
    T = frame.times.length;
  const natural = d.sheet ? d.sheet.width / d.sheet.height : 16 / 9;
  const room = Math.min(1180, document.getElementById("main").clientWidth - 60) - 130;
  const height = Math.round(Math.max(64, Math.min(170, (room / T - 6) / natural)));
  const width = Math.round(height * natural);
  const rows = [
    make(
      "div",
      { class: "clip-row times" },
      make("div", { class: "clip-label" }),
      ...frame.times.map(([start], i) =>
        make(
          "div",
          { class: "clip-time", style: { width: `${width}px` } },
          i < frame.real ? reelcache.exact(start) : "fill",
        ),
      ),
    ),
  ];
  const cell = (row, column, sheet, kind, label) => {
    const box = make("div", {
      class: `clip-cell ${kind}`,
      role: "img",
      "aria-label": label,
      style: { width: `${width}px`, height: `${height}px` },
    });
    return reelcache.cell(box, {
      ...sheet,
      row,
      column,
      scaleX: width / sheet.width,
      scaleY: height / sheet.height,
    });
  };
  if (d.sheet && d.sheet.there[place]) {
    const sheet = {
      url: reelcache.file(number, ".jpg"),
      columns: d.sheet.frames,
      rows: d.chosen.length,
      width: d.sheet.width,
      height: d.sheet.height,
    };
    rows.push(
      make(
        "div",
        { class: "clip-row" },
        make("div", { class: "clip-label" }, "picture"),
        ...frame.times.map(([start], i) =>
          cell(
            place,
            i,
            sheet,
            i < frame.real ? "" : "fill",
            `Picture at ${reelcache.exact(start)}`,
          ),
        ),
      ),
    );
  } else {
    rows.push(
      make(
        "div",
        { class: "clip-row" },
        make("div", { class: "clip-label" }, "picture"),
        make("div", { class: "empty" }, "The cache has no preview of this clip."),
      ),
    );
  }
  for (const map of d.maps) {
    const row = map.mapped.indexOf(place);
    const label = make(
      "div",
      { class: "clip-label" },
      make("b", {}, name(map.stream)),
      make("br"),
      name(map.encoder),
      make("br"),
      `${map.rows} × ${map.columns} × ${map.dim}`,
    );
    if (row < 0) {
      rows.push(
        make(
          "div",
          { class: "clip-row" },
          label,
          make(
            "div",
            { class: "empty" },
            `The report has maps of ${map.mapped.length} of ${reelcache.count(d.chosen.length, "clip")} with pictures.`,
          ),
        ),
      );
      continue;
    }
    const stride = Math.max(1, Math.floor(T / map.grids));
    const sheet = {
      url: map.png,
      columns: map.grids,
      rows: map.mapped.length,
      width: map.columns,
      height: map.rows,
    };
    rows.push(
      make(
        "div",
        { class: "clip-row" },
        label,
        ...Array.from({ length: map.grids }, (_, grid) => {
          const box = cell(
            row,
            grid,
            sheet,
            `cells ${grid * stride < frame.real ? "" : "fill"}`,
            `Map of ${map.stream}, grid ${grid}`,
          );
          box.style.marginRight = `${(stride - 1) * (width + 6) + 6}px`;
          return box;
        }),
      ),
    );
  }
  return make(
    "div",
    { class: "clip-grid", tabIndex: 0, role: "group", "aria-label": "Frames and maps of the clip" },
    ...rows,
  );
};
