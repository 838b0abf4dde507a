// Unpacks token sets and describes their tokens.
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
      kept: unpacked(packed.kept, packed.index_type),
      offsets: unpacked(packed.offsets, "<u4"),
      sources: unpacked(packed.sources, packed.index_type),
      weights: unpacked(packed.weights, "<f4"),
      segments: packed.segments,
      isStatic: unpacked(packed.static, "u1"),
      saliency: unpacked(packed.saliency, "u1"),
      range: packed.range,
      about: packed.about,
      missing: packed.missing,
    };
    const total = frames * set.perFrame;
    // Per position, the kept token there, and the token into which it is merged with the largest weight.
    set.at = new Int32Array(total).fill(-1);
    set.into = new Int32Array(total).fill(-1);
    const heaviest = new Float32Array(total);
    set.perTime = new Int32Array(frames);
    set.kept.forEach((position, token) => {
      set.at[position] = token;
      set.perTime[Math.floor(position / set.perFrame)] += 1;
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

  // The source positions of a kept token, with their weights.
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

  // How a kept token is made: unchanged, averaged over frames at its own place, or an anchor of others.
  function roleOf(set, token) {
    const made = parts(set, token);
    if (made.length === 1) return "unchanged";
    const place = set.kept[token] % set.perFrame;
    return made.every(([source]) => source % set.perFrame === place) ? "averaged" : "anchor";
  }

  // Why a token is kept: unchanged for its score or its place, for others at its place or elsewhere.
  const REASONS = { unchanged: "chosen unchanged", averaged: "averaged over frames", anchor: "anchor of merged tokens" };
  const reasonOf = (set, role) => (role === "unchanged" && set.saliency ? "salient" : REASONS[role]);

  // Number of kept tokens of a frame by role.
  function rolesIn(set, frame) {
    const found = { unchanged: 0, anchor: 0, averaged: 0 };
    for (let cell = 0; cell < set.perFrame; cell++) {
      const token = set.at[frame * set.perFrame + cell];
      if (token >= 0) found[roleOf(set, token)] += 1;
    }
    return found;
  }

  // Of every cell of a frame whether two token sets keep it: "both", "own", "other", "none".
  // null if their grids differ.
  function difference(set, other, frame) {
    if (set.width !== other.width || set.height !== other.height) return null;
    const start = frameAt(other, set.times[frame]) * other.perFrame;
    return Array.from({ length: set.perFrame }, (_, cell) => {
      const [mine, theirs] = [set.at[frame * set.perFrame + cell] >= 0, other.at[start + cell] >= 0];
      return mine ? (theirs ? "both" : "own") : theirs ? "other" : "none";
    });
  }

  // Place of a position among those of its frame, 1 for the highest saliency.
  function rankOf(set, position) {
    const start = position - (position % set.perFrame);
    const frame = set.saliency.subarray(start, start + set.perFrame);
    return 1 + frame.filter((one) => one > set.saliency[position]).length;
  }

  function cellOf(set, position) {
    const time = Math.floor(position / set.perFrame);
    const cell = position % set.perFrame;
    return { time, row: Math.floor(cell / set.width), column: cell % set.width };
  }

  // The frame displayed at a time: the last one that has begun.
  function frameAt(set, time) {
    let at = 0;
    while (at + 1 < set.frames && set.times[at + 1] <= time + 1e-6) at += 1;
    return at;
  }

  function segmentAt(set, frame) {
    const at = set.starts.filter((start) => start <= frame).length - 1;
    if (at < 0 || set.segments.length < 1) return null;
    return { number: at + 1, of: set.segments.length, first: set.starts[at], length: set.segments[at] };
  }

  function saliencyAt(set, position) {
    if (!set.saliency) return null;
    const [low, high] = set.range;
    return low + ((high - low) * set.saliency[position]) / 255;
  }

  // A sentence about a position, for the panel and for screen readers.
  function described(set, position) {
    const { time, row, column } = cellOf(set, position);
    const where = `Frame ${time + 1}, row ${row + 1}, column ${column + 1}`;
    const score = saliencyAt(set, position);
    const more = [
      ...(set.isStatic && set.isStatic[position] ? ["static"] : []),
      ...(score === null ? [] : [`saliency ${score.toPrecision(3)}, rank ${rankOf(set, position)} of ${set.perFrame} in its frame`]),
    ];
    const suffix = more.length ? ` (${more.join(", ")})` : "";
    const token = set.at[position];
    if (token >= 0) {
      const made = parts(set, token);
      const reason = reasonOf(set, roleOf(set, token));
      if (made.length === 1 && made[0][0] === position) return `${where}: kept unchanged; ${reason}${suffix}.`;
      const frames = new Set(made.map(([source]) => Math.floor(source / set.perFrame)));
      const share = made.find(([source]) => source === position);
      const own = share ? `, its own weight is ${share[1].toFixed(3)}` : ", not merged from itself";
      return `${where}: kept, made of ${made.length} tokens in ${frames.size} ${frames.size === 1 ? "frame" : "frames"}${own}; ${reason}${suffix}.`;
    }
    const into = set.into[position];
    if (into < 0) return `${where}: dropped${suffix}.`;
    const target = cellOf(set, set.kept[into]);
    const weight = parts(set, into).find(([source]) => source === position)[1];
    return `${where}: merged into frame ${target.time + 1}, row ${target.row + 1}, column ${target.column + 1} with weight ${weight.toFixed(3)}${suffix}.`;
  }

  tango.tokens = { tokenSet, parts, isMerged, roleOf, reasonOf, rolesIn, difference, cellOf, frameAt, segmentAt, described };
})();
