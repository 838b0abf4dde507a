// The list of questions: filters, order, pages.
"use strict";
(() => {
  const { h } = preact;
  const { useEffect, useRef, useState } = preactHooks;
  const { value, values, without, filters, go, link } = tango.state;
  const { Choice, Help, Mark, Problem, families, number, openHelp, percent, spoken, useAnswer, useKeys } = tango.parts;

  const OUTCOMES = [
    ["", "any outcome"],
    ["right", "right"],
    ["wrong", "wrong"],
    ["lost", "full right and method wrong"],
    ["won", "full wrong and method right"],
    ["differ", "right here, wrong elsewhere"],
    ["unscored", "not scored"],
  ];
  const SORTS = [
    ["order", "order of the run"],
    ["rights", "number of right cells"],
    ["video", "video"],
    ["id", "question id"],
    ["text", "text"],
  ];
  const KEYS = [
    ["/", "search"],
    ["j, k", "next, previous question"],
    ["Enter", "open the question in focus"],
    ["n, p", "next, previous page"],
    ["?", "these keys"],
  ];

  function List({ contents, pairs }) {
    const own = filters(pairs);
    const { value: found, error, isPending } = useAnswer(
      () => tango.data.questions(own),
      [JSON.stringify(own)],
    );
    const change = (name, one) =>
      go("list", [...without(own, name, "page"), ...(one ? [[name, one]] : [])], name === "q" || name === "reply");
    const page = Number(value(own, "page", "0")) || 0;
    const pages = found ? Math.max(1, Math.ceil(found.total / contents.page)) : 1;
    const turn = (to) => {
      if (to < 0 || to >= pages) return false;
      go("list", [...without(own, "page"), ...(to ? [["page", String(to)]] : [])]);
      window.scrollTo(0, 0);
      return true;
    };
    const step = (by) => {
      const links = [...document.querySelectorAll("a.question")];
      const next = links[links.indexOf(document.activeElement) + by] || (by > 0 ? links[0] : links.at(-1));
      if (next) next.focus();
    };
    useKeys({
      "/": () => document.getElementById("search").focus(),
      j: () => step(1),
      k: () => step(-1),
      n: () => turn(page + 1),
      p: () => turn(page - 1),
      "?": openHelp,
    });
    return h("main", { id: "main", tabIndex: -1 }, [
      h(Runs, { contents }),
      ...contents.missing.map((text) => h("p", { class: "note" }, text)),
      h(Filters, { contents, own, change }),
      error && h(Problem, { error }),
      found && h("p", { class: "count", role: "status", "aria-live": "polite" }, counted(found, contents)),
      found && h(Table, { contents, own, found, isPending }),
      found && h(Pager, { page, pages, turn }),
      !found && !error && h("p", { class: "loading", role: "status" }, "Loading ..."),
      h(Help, { keys: KEYS }),
    ]);
  }

  function counted(found, contents) {
    const all = found.total === contents.questions ? "" : ` of ${number(contents.questions)}`;
    return `${number(found.total)}${all} questions about ${number(found.clips)} clips`;
  }

  function Runs({ contents }) {
    return h("details", { class: "runs" }, [
      h("summary", null, [
        h("h1", null, contents.benchmarks.map(([name]) => name).join(", ")),
        h("span", { class: "soft" }, [...new Set(contents.runs.map((run) => `${run.model}, ${run.frames || "?"} frames`))].join("; ")),
      ]),
      h("ol", null, contents.runs.map((run) => h("li", null, [
        h("b", null, run.label),
        ` \u00b7 ${run.model} \u00b7 ${run.device || "device unknown"} \u00b7 ${run.started}`,
        run.note && h("div", { class: "note" }, run.note),
        h("div", { class: "soft path" }, run.where.join(", ")),
      ]))),
      h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Cells" },
        h("table", { class: "cells" }, [
          h("thead", null, h("tr", null, ["cell", "right", "questions", "share right"].map((text) => h("th", { scope: "col" }, text)))),
          h("tbody", null, contents.columns.map((one) => h("tr", null, [
            h("th", { scope: "row" }, one.short),
            h("td", null, number(one.right)),
            h("td", null, number(one.asked)),
            h("td", null, one.asked ? percent(one.right / one.asked) : "-"),
          ]))),
        ])),
    ]);
  }

  function Filters({ contents, own, change }) {
    const chosenGroups = values(own, "group").map((text) => {
      const cut = text.indexOf("=");
      return [text.slice(0, cut), text.slice(cut + 1)];
    });
    const setGroup = (name, one) => {
      const kept = own.filter(([key, text]) => key !== "page" && !(key === "group" && text.startsWith(`${name}=`)));
      go("list", [...kept, ...(one ? [["group", `${name}=${one}`]] : [])]);
    };
    const groups = Object.entries(contents.groups);
    return h("form", { class: "filters", role: "search", "aria-label": "Filters", onSubmit: (event) => event.preventDefault() }, [
      h(Search, { name: "q", id: "search", label: "Search", placeholder: "words of question, options, id or video", text: value(own, "q"), change }),
      h(Search, { name: "reply", id: "reply", label: "Reply", placeholder: "words of a reply", text: value(own, "reply"), change }),
      contents.benchmarks.length > 1 && h(Choice, {
        label: "Benchmark", name: "of", value: value(own, "of"), onChange: (one) => change("of", one),
        options: [["", "all benchmarks"], ...contents.benchmarks.map(([name, n]) => [name, `${name} (${number(n)})`])],
      }),
      ...groups.map(([name, all]) => h(Choice, {
        label: name, name: `group-${name}`, value: (chosenGroups.find(([key]) => key === name) || ["", ""])[1],
        options: [["", "all"], ...all.map((one) => [one, one])], onChange: (one) => setGroup(name, one),
      })),
      h(Choice, {
        label: "Cell", name: "column", value: value(own, "column"), onChange: (one) => change("column", one),
        options: [["", "any cell"], ...contents.columns.map((one) => [one.label, one.short])],
      }),
      h(Choice, { label: "Outcome", name: "outcome", value: value(own, "outcome"), options: OUTCOMES, onChange: (one) => change("outcome", one) }),
      h(Choice, {
        label: "Status", name: "status", value: value(own, "status"), onChange: (one) => change("status", one),
        options: [["", "any status"], ...Object.keys(contents.statuses).map((one) => [one, one.replace("_", " ")])],
      }),
      h(Choice, { label: "Sort by", name: "sort", value: value(own, "sort", "order"), options: SORTS, onChange: (one) => change("sort", one === "order" ? "" : one) }),
      h("label", { class: "field check" }, [
        h("input", { type: "checkbox", name: "desc", checked: value(own, "desc") === "1", onChange: (event) => change("desc", event.target.checked ? "1" : "") }),
        h("span", null, "descending"),
      ]),
      own.length > 0 && h("button", { type: "button", class: "clear", onClick: () => go("list", []) }, "Clear filters"),
    ]);
  }

  function Search({ name, id, label, placeholder, text, change }) {
    const [typed, set] = useState(text);
    const timer = useRef(0);
    // Not while the user types, because the address is updated with a delay.
    useEffect(() => {
      if (!timer.current) set(text);
    }, [text]);
    const onInput = (event) => {
      const one = event.target.value;
      set(one);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => {
        timer.current = 0;
        change(name, one);
      }, 250);
    };
    return h("label", { class: "field search" }, [
      h("span", null, label),
      h("input", { type: "search", id, name, value: typed, onInput, placeholder, autocomplete: "off", spellcheck: false }),
    ]);
  }

  function Table({ contents, own, found, isPending }) {
    return h("div", { class: "scroll", "aria-busy": isPending ? "true" : "false" },
      h("table", { class: "questions" }, [
        h("thead", null, h("tr", null, [
          h("th", { scope: "col" }, "Question"),
          h("th", { scope: "col", class: "outcomes" }, [
            h("span", { class: "hidden" }, "Outcome per cell"),
            h("span", { class: "heads", "aria-hidden": "true" }, families(contents.columns).map(({ members }) => h("span", { class: "family" },
              members.map((at) => h("span", { class: "head", title: contents.columns[at].label }, h("span", null, contents.columns[at].short)))))),
          ]),
        ])),
        h("tbody", null, found.rows.map((row) => h(Row, { key: row.question, contents, own, row }))),
      ]));
  }

  function Row({ contents, own, row }) {
    const href = link("clip", [
      ...own, ["benchmark", row.benchmark], ["video", row.video], ["question", row.id],
    ]);
    const groups = (contents.kinds[row.kind] || []).map(([name, one]) => `${name}: ${one}`).join(" \u00b7 ");
    return h("tr", null, [
      h("td", null, [
        h("a", { class: "question", href }, row.text || row.id),
        h("div", { class: "soft small" }, [contents.benchmarks.length > 1 && `${row.benchmark} \u00b7 `, row.video, groups && ` \u00b7 ${groups}`]),
      ]),
      h("td", { class: "outcomes" }, [
        h("span", { class: "hidden" }, spoken(contents.columns, row.outcomes)),
        h("span", { class: "marks" }, families(contents.columns).map(({ name, members }) => h("span", { class: "family" }, [
          h("span", { class: "of", "aria-hidden": "true" }, name),
          ...members.map((at) => h(Mark, { letter: row.outcomes[at], label: contents.columns[at].short, share: members.length > 1 || contents.columns[at].retention < 1 ? contents.columns[at].retention : null })),
        ]))),
      ]),
    ]);
  }

  function Pager({ page, pages, turn }) {
    return h("nav", { class: "pager", "aria-label": "Pages" }, [
      h("button", { type: "button", disabled: page === 0, onClick: () => turn(0) }, "First"),
      h("button", { type: "button", disabled: page === 0, onClick: () => turn(page - 1) }, "Previous"),
      h("span", { "aria-current": "page" }, `Page ${number(page + 1)} of ${number(pages)}`),
      h("button", { type: "button", disabled: page + 1 >= pages, onClick: () => turn(page + 1) }, "Next"),
      h("button", { type: "button", disabled: page + 1 >= pages, onClick: () => turn(pages - 1) }, "Last"),
    ]);
  }

  tango.List = List;
})();
