// Draws frames and their tokens on canvases.
"use strict";
(() => {
  const { isMerged, parts, roleOf } = tango.tokens;
  // Distinguishable colours of merged groups; a group has the same colour in all frames.
  const GROUPS = ["#ff8c42", "#4db2ec", "#2fc99a", "#ec9fcb", "#e6c04a", "#b39cff", "#ff7a7a", "#9fd8ff"];
  const KEPT = "#ffffff";
  const groupColor = (token) => GROUPS[(token * 5) % GROUPS.length];

  function sized(canvas, width, height) {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  // Frame `frame` of a sprite that holds `per` frames below each other.
  function drawFrame(pen, sprite, inSprite, count, width, height) {
    if (!sprite) {
      pen.fillStyle = "#5c6b7a";
      pen.fillRect(0, 0, width, height);
      return;
    }
    const own = sprite.naturalHeight / count;
    pen.drawImage(sprite, 0, inSprite * own, sprite.naturalWidth, own, 0, 0, width, height);
  }

  function heat(level) {
    const x = level / 255; // from dark blue over magenta to yellow
    const r = Math.round(255 * Math.min(1, Math.max(0, 1.7 * x - 0.05)));
    const g = Math.round(255 * Math.max(0, Math.min(1, 1.9 * x - 0.85)));
    const b = Math.round(255 * Math.max(0, 0.55 + 0.5 * Math.sin(3.4 * x + 0.2) - 0.9 * x * x));
    return `rgba(${r}, ${g}, ${b}, 0.68)`;
  }

  // What is drawn over a frame. `layers` is a set of: kept, merged, static, saliency, grid.
  function drawTokens(pen, set, frame, layers, selected, width, height) {
    const [w, h] = [width / set.width, height / set.height];
    const start = frame * set.perFrame;
    const heats = layers.has("saliency") && set.saliency !== null;
    const box = (cell) => [(cell % set.width) * w, Math.floor(cell / set.width) * h];
    for (let cell = 0; cell < set.perFrame; cell++) {
      const position = start + cell;
      const [x, y] = box(cell);
      const [token, into] = [set.at[position], set.into[position]];
      if (heats) {
        pen.fillStyle = heat(set.saliency[position]);
        pen.fillRect(x, y, w, h);
      }
      const merged = layers.has("merged") && into >= 0 && isMerged(set, into);
      if (merged && token < 0) {
        pen.globalAlpha = 0.42;
        pen.fillStyle = groupColor(into);
        pen.fillRect(x, y, w, h);
        pen.globalAlpha = 1;
      } else if (layers.has("kept") && token < 0) {
        // Over the heat map a veil would change its colours.
        pen.fillStyle = "rgba(8, 12, 18, 0.74)";
        if (!heats) pen.fillRect(x, y, w, h);
      }
    }
    if (layers.has("grid")) grid(pen, set, width, height);
    if (layers.has("kept") && set.kept.length < set.frames * set.perFrame) {
      for (let cell = 0; cell < set.perFrame; cell++) {
        const token = set.at[start + cell];
        if (token < 0) continue;
        const colored = layers.has("merged") && isMerged(set, token);
        outline(pen, ...box(cell), w, h, colored ? groupColor(token) : KEPT, colored ? 3 : 1.5);
        if (colored && roleOf(set, token) === "anchor") dot(pen, ...box(cell), w, h, groupColor(token));
      }
    }
    if (layers.has("static") && set.isStatic) {
      for (let cell = 0; cell < set.perFrame; cell++) {
        if (set.isStatic[start + cell]) corner(pen, ...box(cell), w, h);
      }
    }
    if (selected !== null) select(pen, set, frame, selected, box, w, h);
  }

  // What two token sets keep of a frame: own alone filled with lines up, the other's alone with lines down.
  const ALONE = { own: ["#ff8c42", -1], other: ["#4db2ec", 1] };
  function drawDifference(pen, set, cells, width, height) {
    const [w, h] = [width / set.width, height / set.height];
    cells.forEach((kind, cell) => {
      const [x, y] = [(cell % set.width) * w, Math.floor(cell / set.width) * h];
      if (kind === "none") {
        pen.fillStyle = "rgba(8, 12, 18, 0.74)";
        pen.fillRect(x, y, w, h);
      } else if (kind !== "both") {
        const [color, slope] = ALONE[kind];
        hatched(pen, x, y, w, h, color, slope);
      }
    });
    cells.forEach((kind, cell) => {
      if (kind === "none") return;
      const color = kind === "both" ? KEPT : ALONE[kind][0];
      outline(pen, (cell % set.width) * w, Math.floor(cell / set.width) * h, w, h, color, kind === "both" ? 1.5 : 3);
    });
  }

  function hatched(pen, x, y, w, h, color, slope) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = -h; at < w + h; at += 6) {
      pen.moveTo(x + at, y + (slope > 0 ? 0 : h));
      pen.lineTo(x + at + h, y + (slope > 0 ? h : 0));
    }
    pen.stroke();
    pen.restore();
  }

  // A corner, so that the picture and the colour of the group are still seen.
  function corner(pen, x, y, w, h) {
    const size = Math.max(4, Math.min(11, w * 0.3, h * 0.3));
    pen.beginPath();
    pen.moveTo(x + w - 1, y + h - 1 - size);
    pen.lineTo(x + w - 1, y + h - 1);
    pen.lineTo(x + w - 1 - size, y + h - 1);
    pen.closePath();
    pen.fillStyle = "#7ff0ff";
    pen.fill();
    pen.strokeStyle = "rgba(0, 0, 0, 0.8)";
    pen.lineWidth = 1;
    pen.stroke();
  }

  function grid(pen, set, width, height) {
    pen.strokeStyle = "rgba(255, 255, 255, 0.35)";
    pen.lineWidth = 0.5;
    pen.beginPath();
    for (let c = 1; c < set.width; c++) {
      pen.moveTo((c * width) / set.width, 0);
      pen.lineTo((c * width) / set.width, height);
    }
    for (let r = 1; r < set.height; r++) {
      pen.moveTo(0, (r * height) / set.height);
      pen.lineTo(width, (r * height) / set.height);
    }
    pen.stroke();
  }

  // The mark of an anchor.
  function dot(pen, x, y, w, h, color) {
    pen.beginPath();
    pen.arc(x + w / 2, y + h / 2, Math.max(2.5, Math.min(5, w * 0.14)), 0, 2 * Math.PI);
    pen.fillStyle = color;
    pen.fill();
    pen.strokeStyle = "rgba(0, 0, 0, 0.8)";
    pen.lineWidth = 1;
    pen.stroke();
  }

  // A dark line around a light one is seen on every picture.
  function outline(pen, x, y, w, h, color, width) {
    pen.strokeStyle = "rgba(0, 0, 0, 0.75)";
    pen.lineWidth = width + 1.5;
    pen.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
  }

  // The selected position and all positions of the same kept token.
  function select(pen, set, frame, position, box, w, h) {
    const token = set.at[position] >= 0 ? set.at[position] : set.into[position];
    if (token >= 0) {
      for (const [source] of parts(set, token)) {
        // Not over the kept position itself, which would change the colours of its picture.
        if (Math.floor(source / set.perFrame) !== frame || set.at[source] === token) continue;
        const [x, y] = box(source % set.perFrame);
        pen.fillStyle = "rgba(255, 255, 0, 0.35)";
        pen.fillRect(x, y, w, h);
      }
      const target = set.kept[token];
      if (Math.floor(target / set.perFrame) === frame) {
        outline(pen, ...box(target % set.perFrame), w, h, "#ffee00", 3);
      }
    }
    if (Math.floor(position / set.perFrame) === frame) {
      const [x, y] = box(position % set.perFrame);
      pen.setLineDash([4, 3]);
      outline(pen, x + 3, y + 3, w - 6, h - 6, "#ffee00", 1.5);
      pen.setLineDash([]);
    }
  }

  // Kept tokens per frame as bars, with segment borders, and where the selected token comes from.
  function drawStrip(pen, set, frame, selected, colors, width, height) {
    const step = width / set.frames;
    const most = Math.max(1, ...set.perTime);
    const token = selected === null ? -1 : set.at[selected] >= 0 ? set.at[selected] : set.into[selected];
    const from = new Set(token < 0 ? [] : parts(set, token).map(([source]) => Math.floor(source / set.perFrame)));
    for (let t = 0; t < set.frames; t++) {
      const tall = (set.perTime[t] / most) * (height - 8);
      pen.fillStyle = t === frame ? colors.accent : colors.bar;
      pen.fillRect(t * step + 0.5, height - tall, Math.max(1, step - 1), tall);
      if (from.has(t)) {
        pen.fillStyle = colors.ink;
        pen.fillRect(t * step + step / 2 - 2, 0, 4, 4);
      }
    }
    pen.fillStyle = colors.ink;
    for (const start of set.segments.length > 1 ? set.starts.slice(1) : []) {
      pen.fillRect(start * step - 1, 0, 2, height);
    }
  }

  tango.draw = { sized, drawFrame, drawTokens, drawDifference, drawStrip, groupColor };
})();
