// The page of one clip: the question, and cells side by side at one time.
"use strict";
(() => {
  const { h } = preact;
  const { useEffect, useMemo, useState } = preactHooks;
  const { value, values, without, filters, go, link } = tango.state;
  const { Help, Mark, Problem, Choice, openHelp, percent, series, useAnswer, useKeys, wordsOf } = tango.parts;
  const { frameAt, tokenSet } = tango.tokens;

  const LAYERS = [
    ["k", "kept", "kept tokens"],
    ["m", "merged", "merged groups"],
    ["s", "static", "static positions"],
    ["h", "saliency", "saliency"],
    ["g", "grid", "grid"],
  ];
  const SHOWN = "kms";
  const MOST = 6;
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const KEYS = [
    ["\u2190 \u2192", "one frame back, forward"],
    ["Home, End", "first, last frame"],
    ["space", "play, pause"],
    ["1 ... 5", "layers: kept, merged, static, saliency, grid"],
    ["- +", "lower, higher retention"],
    ["Shift + arrows", "choose a token of the picture in focus"],
    ["j, k", "next, previous question of the clip"],
    ["n, p", "next, previous clip of the list"],
    ["Esc", "leave the chosen token; back to the list"],
    ["?", "these keys"],
  ];

  const PAPER = "tango";
  const USUAL = 0.1;

  // Of some columns the one with the retention nearest to another.
  const nearestIn = (columns, members, retention) => members.reduce((best, at) => (Math.abs(columns[at].retention - retention) < Math.abs(columns[best].retention - retention) ? at : best), members[0]);

  // Columns shown if the link names no cells: `full`, the paper's method, the cell of the filter, and
  // other methods, at the filter's retention.
  function defaultColumns({ columns }, filtered) {
    const asked = columns.findIndex((one) => one.label === filtered);
    const retention = asked >= 0 && columns[asked].retention < 1 ? columns[asked].retention : USUAL;
    const groups = new Map();
    columns.forEach((one, at) => groups.set(one.method, [...(groups.get(one.method) || []), at]));
    const found = [...groups.values()].map((members) =>
      members.includes(asked) ? asked : nearestIn(columns, members, retention),
    );
    const rank = (at) => ["full", PAPER].indexOf(columns[at].method);
    const place = (at) => (rank(at) >= 0 ? rank(at) : at === asked ? 2 : 3);
    return found.sort((a, b) => place(a) - place(b)).slice(0, 4);
  }

  // Columns of a link, which names cells by label, or by their name in a run.
  function columnsOf(contents, pairs) {
    const run = value(pairs, "run");
    const inRun = (one) => !run || contents.runs[one.group].ids.includes(run);
    const found = values(pairs, "cell").map((text) => {
      const exact = contents.columns.findIndex((one) => one.label === text);
      return exact >= 0 ? exact : contents.columns.findIndex((one) => one.name === text && inRun(one));
    });
    const known = [...new Set(found.filter((at) => at >= 0))].slice(0, MOST);
    if (known.length) return known;
    return defaultColumns(contents, value(pairs, "column"));
  }

  function Clip({ contents, pairs }) {
    const benchmark = value(pairs, "benchmark");
    const video = value(pairs, "video");
    const own = filters(pairs);
    const page = useAnswer(() => tango.data.clip(benchmark, video, own), [benchmark, video, JSON.stringify(own)]);
    const back = h("a", { class: "back", href: link("list", own) }, "\u2190 All questions");
    const matches = page.value && page.value.benchmark === benchmark && page.value.video === video;
    if (page.error) return h("main", { id: "main", tabIndex: -1 }, [back, h(Problem, { error: page.error })]);
    if (!matches) return h("main", { id: "main", tabIndex: -1 }, [back, h("p", { class: "loading", role: "status" }, "Loading ...")]);
    return h(Shown, { key: `${benchmark}\n${video}`, contents, pairs, clip: page.value, back });
  }

  function Shown({ contents, pairs, clip, back }) {
    const columns = columnsOf(contents, pairs);
    const against = contents.columns.findIndex((one) => one.label === value(pairs, "against"));
    const loaded = against >= 0 && !columns.includes(against) ? [...columns, against] : columns;
    const tokens = useAnswer(() => tango.data.tokens(clip.clip, loaded), [clip.clip, loaded.join()]);
    const number = Math.max(0, clip.questions.findIndex((one) => one.id === value(pairs, "question")));
    const question = clip.questions[number];
    const at = (column) => (tokens.value && tokens.value[column]) || {};
    const sets = useMemo(() => {
      const drawn = Object.entries(tokens.value || {}).filter(([, one]) => one.sets);
      return Object.fromEntries(drawn.map(([column, one]) => [column, tokenSet(one.sets[one.of[number] || 0])]));
    }, [tokens.value, number]);
    const chosen = value(pairs, "token", "");
    const selected = /^\d+$/.test(chosen) ? Number(chosen) : null;
    const [plays, play] = useState(false);
    const [resized, setResized] = useState(0);
    useEffect(() => {
      const onResize = () => setResized((n) => n + 1);
      window.addEventListener("resize", onResize);
      return () => window.removeEventListener("resize", onResize);
    }, []);

    const setOf = (column) => sets[column] || null;
    // The slider stops at every frame of any panel.
    const stops = [...new Set(columns.flatMap((column) => (setOf(column) ? setOf(column).times : [])))].sort((a, b) => a - b);
    const last = Math.max(0, stops.length - 1);
    const step = Math.min(last, Number(value(pairs, "t", "0")) || 0);
    const time = stops[step] ?? 0;
    const letters = value(pairs, "layers", SHOWN);
    const layers = new Set(LAYERS.filter(([letter]) => letters.includes(letter)).map(([, name]) => name));

    const change = (name, one, keep = true) =>
      go("clip", [...without(pairs, name), ...(one === "" ? [] : [[name, one]])], keep);
    const select = (position) => change("token", position === null ? "" : String(position));
    const setCells = (next) =>
      go("clip", [...without(pairs, "cell", "run"), ...next.map((column) => ["cell", contents.columns[column].label])], true);
    const move = (to) => change("t", to <= 0 ? "" : String(Math.min(last, to)));
    const toggle = (letter) => {
      const next = LAYERS.map(([one]) => one).filter((one) => letters.includes(one) !== (one === letter)).join("");
      change("layers", next === SHOWN ? "" : next || "-");
    };
    // Stops of the slider: the retentions of the first method that drops tokens.
    const pruned = columns.find((one) => contents.columns[one].retention < 1);
    const stopsOf = pruned === undefined ? [] : siblings(contents.columns, pruned).map((one) => contents.columns[one].retention);
    const retentions = [...new Set(stopsOf)].sort((a, b) => a - b);
    const level = pruned === undefined ? 0 : retentions.indexOf(contents.columns[pruned].retention);
    const retain = (to) => {
      const next = retentions[Math.max(0, Math.min(retentions.length - 1, to))];
      if (next === undefined) return;
      setCells([...new Set(columns.map((one) => nearestIn(contents.columns, siblings(contents.columns, one), next)))]);
    };
    const ask = (by) => {
      const next = clip.questions[number + by];
      if (next) change("question", next.id);
    };
    const visit = async (other) => {
      if (other === null) return;
      const [benchmark, video] = await tango.data.names(other);
      go("clip", [...without(pairs, "benchmark", "video", "question", "t", "token"), ["benchmark", benchmark], ["video", video]]);
    };
    useEffect(() => {
      if (!plays) return undefined;
      if (step >= last) {
        play(false);
        return undefined;
      }
      const timer = setTimeout(() => move(step + 1), 500);
      return () => clearTimeout(timer);
    }, [plays, step, last]);
    const start = () => {
      if (!plays && step >= last) move(0);
      play(!plays);
    };
    useKeys({
      ArrowLeft: () => move(step - 1),
      ArrowRight: () => move(step + 1),
      Home: () => move(0),
      End: () => move(last),
      " ": (event) => (event.target.closest("button, summary, a") ? false : start()),
      "-": () => retain(level - 1),
      "+": () => retain(level + 1),
      j: () => ask(1),
      k: () => ask(-1),
      n: () => visit(clip.next),
      p: () => visit(clip.previous),
      "?": openHelp,
      Escape: () => (selected === null ? go("list", filters(pairs)) : select(null)),
      ...Object.fromEntries(LAYERS.map(([letter], index) => [String(index + 1), () => toggle(letter)])),
    });

    const panels = columns.map((column) => ({ column, set: setOf(column), view: at(column).view }));
    // What cannot be drawn, once for all cells that lack it.
    const lacks = new Map();
    for (const { column, set, view } of panels) {
      for (const text of set ? [...set.missing, ...(view.missing ? [view.missing] : [])] : []) {
        lacks.set(text, [...(lacks.get(text) || []), contents.columns[column].short]);
      }
    }
    const hasSaliency = panels.some(({ set }) => set && set.saliency);
    return h("main", { id: "main", tabIndex: -1, class: "clip" }, [
      h("nav", { class: "clips", "aria-label": "Clips" }, [
        back,
        h("span", { class: "steps" }, [
          h("button", { type: "button", disabled: clip.previous === null, onClick: () => visit(clip.previous) }, "Previous clip"),
          h("button", { type: "button", disabled: clip.next === null, onClick: () => visit(clip.next) }, "Next clip"),
        ]),
      ]),
      h("h1", null, clip.video),
      h("p", { class: "soft small path" }, [clip.benchmark, ...sources(clip)].join(" \u00b7 ")),
      ...clip.missing.map((text) => h("p", { class: "note" }, text)),
      question && h(Question, { contents, clip, question, number, columns, change }),
      tokens.error && h(Problem, { error: tokens.error }),
      h("section", { class: "controls", "aria-label": "Time and layers" }, [
        h("div", { class: "time" }, [
          h("button", { type: "button", onClick: start, "aria-pressed": plays ? "true" : "false", disabled: last === 0 }, plays ? "Pause" : "Play"),
          h("input", {
            type: "range", id: "time", min: 0, max: last, step: 1, value: step, "aria-label": "Frame",
            "aria-valuetext": `${time.toFixed(1)} seconds, ${step + 1} of ${last + 1}`,
            onInput: (event) => move(Number(event.target.value)),
          }),
          h("output", { for: "time" }, `${time.toFixed(1)} s, ${step + 1} of ${last + 1}`),
        ]),
        h("fieldset", { class: "layers" }, [
          h("legend", { class: "hidden" }, "Layers"),
          ...LAYERS.map(([letter, name, text], index) =>
            h("label", { class: "layer" }, [
              h("input", { type: "checkbox", name, checked: layers.has(name), disabled: name === "saliency" && !hasSaliency, onChange: () => toggle(letter) }),
              h("span", null, text),
              h("kbd", { "aria-hidden": "true" }, index + 1),
            ]),
          ),
        ]),
        retentions.length > 1 && h("label", { class: "field retention" }, [
          h("span", null, `Retention: ${percent(retentions[level])}`),
          h("input", {
            type: "range", name: "retention", min: 0, max: retentions.length - 1, step: 1, value: level,
            "aria-valuetext": percent(retentions[level]), onInput: (event) => retain(Number(event.target.value)),
          }),
        ]),
        columns.length < MOST && h(Choice, {
          label: "Add a cell", name: "add", value: "",
          options: [["", "choose ..."], ...contents.columns.map((one, index) => [one.label, one.short, index]).filter(([, , index]) => !columns.includes(index))],
          onChange: (label) => label && setCells([...columns, contents.columns.findIndex((one) => one.label === label)]),
        }),
        h(Choice, {
          label: "Difference to", name: "against", value: value(pairs, "against"),
          options: [["", "nothing"], ...contents.columns.map((one) => [one.label, one.short])],
          onChange: (label) => change("against", label),
        }),
        h("a", { class: "permanent", href: link("clip", [...without(pairs, "cell", "run", "question"), ...columns.map((one) => ["cell", contents.columns[one].label]), ...(question ? [["question", question.id]] : [])]) }, "Address of this view"),
      ]),
      ...[...lacks].map(([text, cells]) => h("p", { class: "note small lacks" }, `${cells.join(", ")}: ${text}`)),
      h("div", { class: `panels of${Math.min(4, columns.length)}` }, panels.map(({ column, set, view }) =>
        h(tango.Panel, {
          key: column, column: { ...contents.columns[column], number: column }, set, view, time, layers, question,
          asks: (at(column).of || []).length > 0, missing: at(column).missing, theme: resized,
          against: against >= 0 && against !== column && setOf(against) ? { set: setOf(against), short: contents.columns[against].short } : null,
          selected: set && selected !== null && selected < set.frames * set.perFrame ? inTime(set, selected, time) : null,
          select, jump: (to) => move(nearest(stops, to)),
          remove: () => columns.length > 1 && setCells(columns.filter((one) => one !== column)),
        }),
      )),
      h(Legend, { layers, panels, against: against >= 0 && contents.columns[against].short }),
      h("details", { class: "words" }, [
        h("summary", null, "Kept tokens of this frame as tables"),
        h("div", { class: "tables" }, panels.filter(({ set }) => set).map(({ column, set }) =>
          h(tango.TokenTable, { key: column, set, time, select, selected, label: contents.columns[column].short }),
        )),
      ]),
      h(Help, { keys: KEYS }),
    ]);
  }

  // Columns of the same run, method and options, at any retention.
  const siblings = (columns, at) => columns.map((_, one) => one).filter((one) => columns[one].group === columns[at].group && series(columns[one].name) === series(columns[at].name));

  // Index of the selected grid position in the displayed frame.
  const inTime = (set, position, time) => frameAt(set, time) * set.perFrame + (position % set.perFrame);

  const nearest = (stops, time) => stops.reduce((best, one, at) => (Math.abs(one - time) < Math.abs(stops[best] - time) ? at : best), 0);

  function sources(clip) {
    const seconds = ([start, end]) => (start === null ? "" : `, ${start} s to ${end} s`);
    return [...new Set(clip.sources.map((one) => `${one.path}${seconds(one.bounds)}`))];
  }

  function Question({ contents, clip, question, number, columns, change }) {
    const right = question.answer;
    return h("section", { class: "asked", "aria-label": "Question" }, [
      clip.questions.length > 1 && h("div", { class: "tabs", role: "group", "aria-label": "Questions of this clip" }, clip.questions.map((one, at) =>
        h("button", { type: "button", "aria-pressed": at === number ? "true" : "false", title: one.text, onClick: () => change("question", one.id) }, `Question ${at + 1}`),
      )),
      h("h2", null, question.text || question.id),
      question.choices.length > 0 && h("ol", { class: "choices" }, question.choices.map((text, at) => {
        const by = columns.filter((column) => (question.answers[column] || {}).choice === at).map((column) => contents.columns[column].short);
        return h("li", { class: at === right ? "right" : "" }, [
          h("b", null, `${LETTERS[at] || at + 1}. `), text,
          at === right && h("span", { class: "badge right" }, "\u2713 right answer"),
          by.length > 0 && h("span", { class: "soft small" }, ` chosen by ${by.join(", ")}`),
        ]);
      })),
      question.accepted.length > 0 && h("p", null, `accepted: ${question.accepted.join(" / ")}`),
      question.span && h("p", null, [`${question.span} `, h("span", { class: "badge right" }, "\u2713 right answer")]),
      h("p", { class: "soft small" }, [question.id, ...question.groups.map(([name, one]) => `${name}: ${one}`)].join(" \u00b7 ")),
      h("details", { class: "all" }, [
        h("summary", null, "All cells"),
        h("ul", { class: "every" }, contents.columns.map((one, at) => h("li", null, [
          h(Mark, { letter: question.outcomes[at] }), ` ${one.short}: `, h("span", { class: "hidden" }, wordsOf(question.outcomes[at])[2]),
          h("q", null, (question.answers[at] || {}).text || ""),
        ]))),
      ]),
    ]);
  }

  function Legend({ layers, panels, against }) {
    const some = panels.map(({ set }) => set).filter(Boolean);
    const scale = some.find((set) => set.saliency);
    const entry = (shown, key, text) => shown && h("span", null, [h("i", { class: `key ${key}` }), text]);
    const bars = h("span", null, "Bars: kept tokens per frame; lines between them are borders of segments, dots are frames of the chosen token.");
    if (against) {
      return h("p", { class: "legend soft small" }, [
        entry(true, "kept", `kept here and by ${against}`),
        entry(true, "own", "kept here alone"),
        entry(true, "other", `kept by ${against} alone`),
        entry(true, "dropped", "kept by neither"),
        bars,
      ]);
    }
    const merged = layers.has("merged") && some.some((set) => set.offsets);
    return h("p", { class: "legend soft small" }, [
      entry(layers.has("kept"), "kept", "kept"),
      entry(layers.has("kept"), "dropped", "dropped"),
      entry(merged, "merged", "a colour per merged group: outlined where it is kept, with a dot in an anchor, filled where it comes from"),
      entry(layers.has("static") && some.some((set) => set.isStatic), "static", "averaged over its segment"),
      entry(layers.has("saliency") && scale, "heat", "saliency, from the lowest to the highest of the clip"),
      bars,
    ]);
  }

  tango.Clip = Clip;
})();
