// What was rejected: how many for each reason, and which sources.
"use strict";

reelcache.drawRejects = function (rejects) {
  const { make, count, name } = reelcache;
  const title = make(
    "h2",
    {},
    "Rejected ",
    make("small", {}, rejects.count ? count(rejects.count, "source") : ""),
  );
  if (!rejects.count) return [title, make("p", { class: "empty" }, "No source was rejected.")];
  const largest = Math.max(...rejects.reasons.map(([, number]) => number));
  const bars = rejects.reasons.map(([reason, number, meaning]) =>
    make(
      "div",
      { class: "bar", title: meaning },
      make(
        "span",
        { class: "bar-name" },
        make("code", {}, reason),
        make("span", { class: "meaning" }, ` ${meaning}`),
      ),
      make(
        "span",
        { class: "bar-track" },
        make("span", {
          class: "bar-now bad",
          style: { width: `${(100 * number) / largest}%`, minWidth: "2px" },
        }),
      ),
      make("span", { class: "bar-count" }, count(number)),
    ),
  );
  const body = make("tbody");
  const more = make("button", { type: "button" }, "");
  let shown = 0;
  const show = () => {
    const next = rejects.rows.slice(shown, shown + 100);
    shown += next.length;
    body.append(
      ...next.map(([uri, stage, reason, detail]) =>
        make(
          "tr",
          {},
          make("td", {}, make("code", {}, reason)),
          make("td", {}, stage),
          make("td", { class: "uri" }, name(uri)),
          make("td", {}, name(detail)),
        ),
      ),
    );
    more.textContent = `Show more, ${count(rejects.rows.length - shown)} are left`;
    more.hidden = shown >= rejects.rows.length;
  };
  more.addEventListener("click", show);
  show();
  const rest = rejects.count - rejects.rows.length;
  return [
    title,
    make("div", { class: "card chart rows reasons" }, ...bars),
    make(
      "details",
      { class: "card" },
      make("summary", {}, "Which sources, and why"),
      make(
        "div",
        { class: "table-box" },
        make(
          "table",
          { class: "plain" },
          make(
            "thead",
            {},
            make(
              "tr",
              {},
              ...["Reason", "Stage", "Source", "Detail"].map((text) =>
                make("th", { scope: "col" }, text),
              ),
            ),
          ),
          body,
        ),
      ),
      more,
      rest > 0
        ? make("p", { class: "muted" }, `and ${count(rest)} more: pipeline rejects lists all`)
        : null,
    ),
  ];
};
