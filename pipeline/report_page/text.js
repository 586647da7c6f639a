// Elements and texts. Names come from files of anyone: they are only ever set as text.
"use strict";
const reelcache = {};

reelcache.make = function (tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

// What cannot be seen, or changes the order of what can, is written out.
reelcache.shown = function (text) {
  return String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu,
    (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"),
  );
};

reelcache.name = (text, properties) =>
  reelcache.make("bdi", properties || {}, reelcache.shown(text));

reelcache.count = (number, noun) =>
  noun === undefined
    ? number.toLocaleString("en")
    : `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// Such as 12.3k, 4.56M: three digits that count.
reelcache.short = function (number) {
  for (const [unit, size] of [
    ["T", 1e12],
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]) {
    // What three digits round up to a thousand has the larger unit.
    if (number >= 0.9995 * size) return Number((number / size).toPrecision(3)) + unit;
  }
  return reelcache.count(Math.round(number));
};

reelcache.bytes = function (number) {
  for (const [unit, size] of [
    ["TB", 1e12],
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ]) {
    if (number >= size) return `${(number / size).toFixed(1)} ${unit}`;
  }
  return `${number} bytes`;
};

reelcache.duration = function (seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
};

// A time on the ruler; `step` is the distance of its marks.
reelcache.clock = function (seconds, step) {
  const digits = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
  const sign = seconds < -1e-9 ? "-" : "";
  const size = Number(Math.abs(seconds).toFixed(digits));
  if (size < 60) return `${sign}${size.toFixed(digits)} s`;
  const hours = Math.floor(size / 3600);
  const minutes = Math.floor((size % 3600) / 60);
  const rest = (size % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return `${sign}${hours ? hours + ":" + String(minutes).padStart(2, "0") : minutes}:${rest}`;
};

reelcache.exact = (seconds) => `${seconds.toFixed(3)} s`;

reelcache.percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
