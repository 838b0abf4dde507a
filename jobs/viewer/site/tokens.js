// A token set as the server packs it, unpacked, and what can be said of it.
"use strict";
(() => {
  const KINDS = { "<u2": Uint16Array, "<u4": Uint32Array, "<f4": Float32Array, u1: Uint8Array };

  function unpacked(text, kind) {
    if (text === null) return null;
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new KINDS[kind](bytes.buffer);
  }

  function tokenSet(packed) {
    const [frames, height, width] = packed.grid;
    const set = {
      frames,
      height,
      width,
      perFrame: height * width,
      times: packed.times,
      kept: unpacked(packed.kept, packed.places),
      offsets: unpacked(packed.offsets, "<u4"),
      sources: unpacked(packed.sources, packed.places),
      weights: unpacked(packed.weights, "<f4"),
      segments: packed.segments,
      isStatic: unpacked(packed.static, "u1"),
      saliency: unpacked(packed.saliency, "u1"),
      range: packed.range,
      missing: packed.missing,
    };
    const total = frames * set.perFrame;
    // Which kept token stands at a place, and into which one a place went with the largest weight.
    set.at = new Int32Array(total).fill(-1);
    set.into = new Int32Array(total).fill(-1);
    const heaviest = new Float32Array(total);
    set.perTime = new Int32Array(frames);
    set.kept.forEach((place, token) => {
      set.at[place] = token;
      set.perTime[Math.floor(place / set.perFrame)] += 1;
      for (const [source, weight] of parts(set, token)) {
        if (Math.abs(weight) > heaviest[source]) {
          heaviest[source] = Math.abs(weight);
          set.into[source] = token;
        }
      }
    });
    set.starts = [];
    set.segments.reduce((start, length) => (set.starts.push(start), start + length), 0);
    return set;
  }

  // The places that a kept token is made of, with their weights.
  function parts(set, token) {
    if (!set.offsets) return [[set.kept[token], 1]];
    const found = [];
    for (let at = set.offsets[token]; at < set.offsets[token + 1]; at++) {
      found.push([set.sources[at], set.weights[at]]);
    }
    return found;
  }

  const isMerged = (set, token) =>
    set.offsets !== null && set.offsets[token + 1] - set.offsets[token] > 1;

  function placeOf(set, place) {
    const time = Math.floor(place / set.perFrame);
    const cell = place % set.perFrame;
    return { time, row: Math.floor(cell / set.width), column: cell % set.width };
  }

  // The position of the grid that is shown at a time: the last one that has begun.
  function positionAt(set, time) {
    let at = 0;
    while (at + 1 < set.frames && set.times[at + 1] <= time + 1e-6) at += 1;
    return at;
  }

  function segmentAt(set, position) {
    const at = set.starts.filter((start) => start <= position).length - 1;
    if (at < 0 || set.segments.length < 1) return null;
    return { number: at + 1, of: set.segments.length, first: set.starts[at], length: set.segments[at] };
  }

  function saliencyAt(set, place) {
    if (!set.saliency) return null;
    const [low, high] = set.range;
    return low + ((high - low) * set.saliency[place]) / 255;
  }

  // One sentence about a place, for the panel and for screen readers.
  function described(set, place) {
    const { time, row, column } = placeOf(set, place);
    const where = `Frame ${time + 1}, row ${row + 1}, column ${column + 1}`;
    const score = saliencyAt(set, place);
    const more = [
      ...(set.isStatic && set.isStatic[place] ? ["static"] : []),
      ...(score === null ? [] : [`saliency ${score.toPrecision(3)}`]),
    ];
    const tail = more.length ? ` (${more.join(", ")})` : "";
    const token = set.at[place];
    if (token >= 0) {
      const made = parts(set, token);
      if (made.length === 1 && made[0][0] === place) return `${where}: kept as it is${tail}.`;
      const frames = new Set(made.map(([source]) => Math.floor(source / set.perFrame)));
      const share = made.find(([source]) => source === place);
      const own = share ? `, its own weight is ${share[1].toFixed(3)}` : ", itself not among them";
      return `${where}: kept, made of ${made.length} tokens in ${frames.size} ${frames.size === 1 ? "frame" : "frames"}${own}${tail}.`;
    }
    const into = set.into[place];
    if (into < 0) return `${where}: dropped${tail}.`;
    const target = placeOf(set, set.kept[into]);
    const weight = parts(set, into).find(([source]) => source === place)[1];
    return `${where}: merged into frame ${target.time + 1}, row ${target.row + 1}, column ${target.column + 1} with weight ${weight.toFixed(3)}${tail}.`;
  }

  tango.tokens = { tokenSet, parts, isMerged, placeOf, positionAt, segmentAt, described };
})();
