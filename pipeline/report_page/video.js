// A video: its facts, its time line, the clip that is chosen.
"use strict";

reelcache.drawVideo = function (box, number, portrait, app) {
  const { make, count, name } = reelcache;
  const { columns: c, words } = app.data.videos;
  const d = portrait;
  const neighbours = app.neighbours(number);
  const step = (text, label, other, key) =>
    make(
      "a",
      {
        class: "button",
        href: other === null ? null : reelcache.linkTo(c.id[other]),
        "aria-label": label,
        "aria-disabled": other === null ? "true" : null,
        id: key,
        title: label,
      },
      text,
    );
  const nav = make(
    "nav",
    { class: "video-nav", "aria-label": "Videos" },
    make("a", { class: "button", href: "#", id: "back" }, "← All videos"),
    make("span", { class: "spacer" }),
    step("Previous", "Previous video (p)", neighbours[0], "previous"),
    step("Next", "Next video (n)", neighbours[1], "next"),
  );
  const heading = make("h1", { tabIndex: -1 }, name(c.name[number]), app.table.badges(number));
  const json = d.json.common;
  const shape = c.width[number] ? `${c.width[number]} × ${c.height[number]}` : "unknown";
  const upright =
    json.display_width &&
    (json.display_width !== c.width[number] || json.display_height !== c.height[number])
      ? `, shown ${json.display_width} × ${json.display_height}`
      : "";
  const facts = [
    [
      "duration",
      reelcache.duration(c.seconds[number]),
      `${reelcache.exact(d.start)} to ${reelcache.exact(d.end)}`,
    ],
    [
      "clips",
      count(c.clips[number]),
      c.missing[number]
        ? `${count(c.missing[number])} missing`
        : `${count(c.frames[number], "frame")}`,
    ],
    ["picture", shape + upright, json.rotation ? `rotated by ${json.rotation}°` : ""],
    [
      "frame rate",
      c.fps[number] === null
        ? c.width[number]
          ? "one frame"
          : "unknown"
        : `${Number(c.fps[number].toPrecision(5))} fps`,
      `sampled at ${app.data.cache.fps} fps`,
    ],
    [
      "codec",
      words[c.codec[number]] || "unknown",
      [words[c.container[number]].split(",")[0], json.decoder ? `by ${json.decoder}` : ""]
        .filter(Boolean)
        .join(", "),
    ],
    [
      "sound",
      c.sound[number] === null ? "unknown" : c.sound[number] ? "has a track" : "no track",
      d.sound ? d.sound.encoder : "not in this cache",
    ],
    ["tokens", reelcache.short(c.tokens[number]), reelcache.bytes(c.bytes[number])],
  ];
  const tiles = make(
    "div",
    { class: "totals small" },
    ...facts.map(([title, value, note]) =>
      make(
        "div",
        { class: "tile" },
        make("div", { class: "tile-name" }, title),
        make("div", { class: "tile-value" }, name(value)),
        make("div", { class: "tile-note" }, name(note)),
      ),
    ),
  );
  const clipBox = make("section", { class: "card clip-panel", "aria-live": "polite" });
  const timeline = new reelcache.Timeline(d, number, (clip) =>
    reelcache.drawClip(clipBox, d, number, clip, app.data.cache, (other) => {
      timeline.select(other, true);
      timeline.view.focus();
    }),
  );
  const notes = [];
  if (d.chosen.length < d.starts.length)
    notes.push(
      `Pictures are of ${d.chosen.length} of ${count(d.starts.length, "clip")}, chosen evenly.`,
    );
  const mapped = d.maps.length ? d.maps[0].mapped.length : 0;
  if (mapped < d.chosen.length) notes.push(`Maps are of ${mapped}.`);
  if (!d.sheet) notes.push("The cache has no previews: its recipe turns them off.");
  if (d.num_events > d.events.length)
    notes.push(`Events are the first ${d.events.length} of ${count(d.num_events)}.`);
  const outside = d.events.filter(
    ([start, end]) => end < timeline.start || start >= timeline.end,
  ).length;
  if (outside) notes.push(`${count(outside, "event")} outside of the video cannot be seen.`);
  if (d.maps.length)
    notes.push(
      "Cells of a map that are alike in their features are alike in colour, all over this video.",
    );
  notes.push("Δ is how much a frame differs from the one before; the brighter, the more.");
  const others = app.cluster(number);
  box.replaceChildren(
    nav,
    heading,
    make("div", { class: "uris" }, ...d.uris.map((uri) => make("div", {}, name(uri)))),
    make("div", { class: "uris muted" }, "id ", make("code", {}, name(d.id))),
    tiles,
    timeline.element,
    make("p", { class: "muted note" }, notes.join(" ")),
    others.length
      ? make(
          "p",
          { class: "others" },
          "Duplicates: ",
          ...others.flatMap((other, i) => [
            i ? ", " : "",
            make("a", { href: reelcache.linkTo(c.id[other]) }, name(c.name[other])),
            c.kept[other] ? " (keep)" : "",
          ]),
          make("small", {}, app.likeness(number) && `This one: ${app.likeness(number)}`),
        )
      : "",
    clipBox,
  );
  timeline.show();
  const first = d.chosen.find((_, place) => d.sheet && d.sheet.there[place]);
  timeline.select(first === undefined ? 0 : first);
  heading.focus({ preventScroll: true });
  return timeline;
};
