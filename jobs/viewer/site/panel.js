// One cell on one clip: a frame with its tokens, how many are kept over time, and the reply.
"use strict";
(() => {
  const { h } = preact;
  const { useEffect, useRef, useState } = preactHooks;
  const { drawDifference, drawFrame, drawStrip, drawTokens, sized } = tango.draw;
  const { cellOf, described, difference, frameAt, isMerged, parts, reasonOf, roleOf, rolesIn, segmentAt } = tango.tokens;
  const { percent, number, wordsOf } = tango.parts;

  const STRIP = 34;

  // Panel({ column, set, asks, against, view, time, layers, question, select, selected, jump, remove })
  function Panel(props) {
    const { column, set, missing, question, remove } = props;
    const answer = question && question.answers[column.number];
    const letter = question ? question.outcomes[column.number] : ".";
    const [kind, sign, text] = wordsOf(letter);
    return h("section", { class: "panel", "aria-label": column.short }, [
      h("header", null, [
        h("h3", { title: column.label }, column.short),
        h("span", { class: `badge ${kind}` }, `${sign} ${text}`),
        h("button", { type: "button", class: "remove", onClick: remove, "aria-label": `Remove ${column.short}` }, "\u00d7"),
      ]),
      set ? h(Picture, props) : h("p", { class: "note" }, "dDe".includes(letter) ? "The clip failed before any token was kept." : missing || "Loading ..."),
      set && h(Facts, props),
      column.layers < 1 && h("p", { class: "note small" }, `This method also drops tokens inside the language model: on average ${percent(column.layers)} of those shown enter a layer. Which ones depends on the question and is not stored.`),
      question && h(Reply, { answer, question }),
    ]);
  }

  function Picture({ column, set, against, view, time, layers, selected, select, jump, theme }) {
    const canvas = useRef(null);
    const strip = useRef(null);
    const [sprite, setSprite] = useState(null);
    const [problem, setProblem] = useState("");
    const [width, setWidth] = useState(0);
    const frame = frameAt(set, time);
    const part = Math.floor(frame / view.per);
    const url = view.urls[part];

    useEffect(() => {
      let current = true;
      if (view.missing || !url) {
        setProblem(view.missing ? "" : "There are no frames.");
        return undefined;
      }
      tango.data.picture(url).then(
        (found) => {
          if (!current) return;
          setSprite({ url, found });
          setProblem("");
        },
        (error) => current && setProblem(error.message),
      );
      return () => {
        current = false;
      };
    }, [url, view.missing]);

    useEffect(() => {
      const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
      watch.observe(canvas.current.parentElement);
      return () => watch.disconnect();
    }, []);

    const shown = sprite && sprite.url === url ? sprite.found : null;
    const inPart = Math.min(view.per, set.frames - part * view.per);
    const shape = sprite ? sprite.found.naturalHeight / framesIn(sprite.url, view, set) / sprite.found.naturalWidth : set.height / set.width;
    const height = Math.round(width * Math.min(shape, 1.8));

    useEffect(() => {
      if (!width) return;
      const pen = sized(canvas.current, width, height);
      drawFrame(pen, shown, frame - part * view.per, inPart, width, height);
      const cells = against && difference(set, against.set, frame);
      if (cells) drawDifference(pen, set, cells, width, height);
      else drawTokens(pen, set, frame, layers, selected, width, height);
      const css = getComputedStyle(document.documentElement);
      const color = (name) => css.getPropertyValue(name).trim();
      const colors = { accent: color("--accent"), bar: color("--bar"), ink: color("--ink") };
      drawStrip(sized(strip.current, width, STRIP), set, frame, selected, colors, width, STRIP);
    });

    const cellAt = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const within = (x, size) => Math.min(size - 1, Math.max(0, Math.floor(x * size)));
      const c = within((event.clientX - box.left) / box.width, set.width);
      const r = within((event.clientY - box.top) / box.height, set.height);
      return frame * set.perFrame + r * set.width + c;
    };
    const onKey = (event) => {
      const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (!event.shiftKey || !steps[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      const at = selected === null ? null : cellOf(set, selected);
      const [dr, dc] = steps[event.key];
      const row = at ? (at.row + dr + set.height) % set.height : 0;
      const col = at ? (at.column + dc + set.width) % set.width : 0;
      select(frame * set.perFrame + row * set.width + col);
    };
    const words = `Frame ${frame + 1} of ${set.frames} at ${set.times[frame].toFixed(1)} s: ${set.perTime[frame]} of ${set.perFrame} tokens kept by ${column.short}. Shift and arrow keys choose a token.`;
    return h("div", { class: "picture" }, [
      h("canvas", {
        ref: canvas, role: "img", tabIndex: 0, "aria-label": words, onKeyDown: onKey, "data-theme": theme,
        style: { width: "100%", height: `${height}px` },
        onClick: (event) => {
          const position = cellAt(event);
          select(position === selected ? null : position);
        },
      }),
      problem && h("p", { class: "note small", role: "status" }, problem),
      h("canvas", {
        ref: strip, class: "strip", "aria-hidden": "true", style: { width: "100%", height: `${STRIP}px` },
        onClick: (event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const to = Math.floor(((event.clientX - box.left) / box.width) * set.frames);
          jump(set.times[Math.min(set.frames - 1, Math.max(0, to))]);
        },
      }),
    ]);
  }

  function framesIn(url, view, set) {
    const part = view.urls.indexOf(url);
    return Math.min(view.per, set.frames - part * view.per);
  }

  function Facts({ set, asks, against, time, selected, layers }) {
    const frame = frameAt(set, time);
    const segment = segmentAt(set, frame);
    const total = set.frames * set.perFrame;
    const merged = set.kept.filter((_, token) => isMerged(set, token)).length;
    const absorbed = set.offsets ? set.into.filter((token, position) => token >= 0 && set.at[position] < 0).length : 0;
    const fixed = set.isStatic ? set.isStatic.slice(frame * set.perFrame, (frame + 1) * set.perFrame).reduce((a, b) => a + b, 0) : null;
    const scale = set.saliency ? `${set.range[0].toPrecision(3)} to ${set.range[1].toPrecision(3)} in this clip` : set.missing.length ? "not stored" : "none: this method ranks by no score of the encoder";
    const rows = [
      ["this frame", `${set.perTime[frame]} of ${set.perFrame} kept`],
      ["clip", `${number(set.kept.length)} of ${number(total)} kept (${percent(set.kept.length / total)})`],
      asks && ["tokens", "of this question alone"],
      set.about && set.kept.length < total && ["method", set.about.replace(/`/g, "")],
      set.kept.length < total && set.perTime[frame] > 0 && !set.missing.length && ["why kept", why(set, frame)],
      merged > 0 && ["merged", `${number(merged)} tokens take in ${number(absorbed)} others`],
      segment && ["segment", `${segment.number} of ${segment.of}, frames ${segment.first + 1} to ${segment.first + segment.length}${fixed === null ? "" : `; ${fixed} static here`}`],
      layers.has("saliency") && ["saliency", scale],
      against && ["difference", compared(set, against, frame)],
    ].filter(Boolean);
    return h("dl", { class: "facts" }, [
      ...rows.flatMap(([name, text]) => [h("dt", null, name), h("dd", null, text)]),
      ...(selected === null ? [] : [h("dt", null, "token"), h("dd", { "aria-live": "polite" }, described(set, selected))]),
    ]);
  }

  function why(set, frame) {
    const found = Object.entries(rolesIn(set, frame)).filter(([, count]) => count);
    return found.map(([role, count]) => `${reasonOf(set, role)} (${count})`).join("; ");
  }

  // Kept tokens of this frame and of the clip that two cells share, or that one of them has.
  function compared(set, against, frame) {
    const count = (cells) => ["both", "own", "other"].map((kind) => cells.filter((one) => one === kind).length);
    const here = difference(set, against.set, frame);
    if (!here) return `not drawn: ${against.short} has another grid`;
    const all = Array.from({ length: set.frames }, (_, at) => count(difference(set, against.set, at)));
    const [both, own, other] = [0, 1, 2].map((at) => all.reduce((sum, one) => sum + one[at], 0));
    const [b, o, t] = count(here);
    return `to ${against.short}: ${b} in both, ${o} only here, ${t} only there; in the clip ${number(both)}, ${number(own)} and ${number(other)}`;
  }

  function Reply({ answer, question }) {
    if (!answer) return h("p", { class: "soft" }, "not asked");
    const ms = (name) => (answer[name] === undefined ? null : `${answer[name].toFixed(1)} ms`);
    const rows = [
      ["score", answer.score === undefined ? null : percent(answer.score)],
      ["prefill", ms("prefill_ms")],
      ["first token", ms("ttft_ms")],
      ["later tokens", ms("decode_ms")],
      ["prompt", answer.prompt_tokens === undefined ? null : `${number(answer.prompt_tokens)} tokens`],
      ["of the clip", answer.tokens_kept === undefined ? null : `${number(answer.tokens_kept)} of ${number(answer.tokens_total)} tokens`],
      ["new", answer.new_tokens === undefined ? null : `${number(answer.new_tokens)} tokens`],
      ["status", answer.status === "ok" ? null : answer.status.replace("_", " ")],
    ].filter(([, one]) => one !== null);
    const option = question.choices[answer.choice] ?? answer.choice_text;
    const letter = answer.choice === undefined ? "" : `${"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[answer.choice] || answer.choice}: `;
    return h("div", { class: "reply" }, [
      h("blockquote", null, answer.text || h("i", null, "no reply")),
      option !== undefined && h("p", { class: "soft small" }, `read as ${letter}${option}`),
      answer.error && h("p", { class: "problem small" }, answer.error),
      h("dl", { class: "facts" }, rows.flatMap(([name, one]) => [h("dt", null, name), h("dd", null, one)])),
    ]);
  }

  // The kept tokens of a frame in words, one table per panel.
  function TokenTable({ set, time, select, selected, label }) {
    const frame = frameAt(set, time);
    const own = [];
    set.kept.forEach((position, token) => {
      if (Math.floor(position / set.perFrame) === frame) own.push([position, token]);
    });
    return h("table", { class: "tokens" }, [
      h("caption", null, `${label}: ${own.length} kept tokens of frame ${frame + 1}`),
      h("thead", null, h("tr", null, ["row", "column", "why", "made of", "largest weight"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, own.map(([position, token]) => {
        const { row, column } = cellOf(set, position);
        const made = parts(set, token);
        return h("tr", { class: position === selected ? "chosen" : "" }, [
          h("td", null, h("button", { type: "button", class: "plain", onClick: () => select(position) }, row + 1)),
          h("td", null, column + 1),
          h("td", null, reasonOf(set, roleOf(set, token))),
          h("td", null, made.length === 1 ? "itself" : `${made.length} tokens`),
          h("td", null, Math.max(...made.map(([, weight]) => weight)).toFixed(3)),
        ]);
      })),
    ]);
  }

  Object.assign(tango, { Panel, TokenTable });
})();
