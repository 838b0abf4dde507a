// Components that both pages use.
"use strict";
(() => {
  const { h } = preact;
  const { useEffect, useLayoutEffect, useRef, useState } = preactHooks;

  const WORDS = {
    R: ["right", "\u2713", "right"],
    W: ["wrong", "\u2717", "wrong"],
    U: ["wrong", "?", "not readable"],
    N: ["unscored", "\u2013", "answered, not scored"],
    d: ["failed", "!", "not decoded"],
    D: ["failed", "!", "damaged, not answered"],
    e: ["failed", "!", "not encoded"],
    a: ["failed", "!", "not answered"],
    x: ["failed", "!", "failed"],
    ".": ["absent", "\u00b7", "not asked"],
  };
  function wordsOf(letter) {
    if ("rwun".includes(letter)) {
      const [kind, sign, text] = WORDS[letter.toUpperCase()];
      return [kind, sign, `${text}, damaged clip`];
    }
    return WORDS[letter] || WORDS["."];
  }

  // The outcome of a cell; on narrow screens, which have no headings, with its retention.
  function Mark({ letter, label, share }) {
    const [kind, sign, text] = wordsOf(letter);
    const title = label ? `${label}: ${text}` : text;
    return h("span", { class: `mark ${kind}`, title, "aria-hidden": "true" }, [
      sign,
      share && h("small", null, `${Number((100 * share).toPrecision(3))} %`),
    ]);
  }

  // A cell's name without its retention: equal for the cells of one method and one set of options.
  const series = (name) => name.split(" ").filter((word) => !word.startsWith("r=")).join(" ");

  // Neighbouring columns of one series: [{ name, members: [number of a column] }].
  function families(columns) {
    const found = [];
    columns.forEach((one, at) => {
      const name = series(one.short);
      const last = found.at(-1);
      if (last && last.name === name) last.members.push(at);
      else found.push({ name, members: [at] });
    });
    return found;
  }

  // All outcomes of a question as a sentence for screen readers.
  function spoken(columns, outcomes) {
    const by = new Map();
    [...outcomes].forEach((letter, at) => {
      const text = wordsOf(letter)[2];
      by.set(text, [...(by.get(text) || []), columns[at].short]);
    });
    return [...by].map(([text, labels]) => `${text}: ${labels.join(", ")}`).join("; ");
  }

  function Choice({ label, name, value, options, onChange, id, bare }) {
    const known = options.some(([one]) => one === value);
    return h("label", { class: "field" }, [
      h("span", { class: bare ? "hidden" : "" }, label),
      h(
        "select",
        { name, id, value, onChange: (event) => onChange(event.target.value) },
        [...(known ? [] : [[value, value]]), ...options].map(([one, text]) =>
          h("option", { value: one, selected: one === value }, text),
        ),
      ),
    ]);
  }

  const THEMES = ["auto", "light", "dark"];
  function stored() {
    try {
      return THEMES.includes(localStorage.getItem("tango-theme")) ? localStorage.getItem("tango-theme") : "auto";
    } catch {
      return "auto"; // a page opened from a disk may have no storage
    }
  }
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("tango-theme", theme);
    } catch {
      // the choice is lost with the page
    }
    window.dispatchEvent(new Event("resize")); // redraws the canvases in the theme's colours
  }
  document.documentElement.dataset.theme = stored();

  function ThemeSwitch() {
    const [theme, set] = useState(stored());
    const names = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
    return h(Choice, {
      label: "Theme",
      bare: true,
      name: "theme",
      value: theme,
      options: THEMES.map((one) => [one, names[one]]),
      onChange: (one) => {
        setTheme(one);
        set(one);
      },
    });
  }

  // The value of the latest finished promise, its error, and whether a newer promise is pending.
  function useAnswer(ask, needs) {
    const [state, set] = useState({ value: null, error: null, isPending: true });
    useEffect(() => {
      let current = true;
      set((old) => ({ ...old, isPending: true }));
      ask().then(
        (value) => current && set({ value, error: null, isPending: false }),
        (error) => current && set({ value: null, error, isPending: false }),
      );
      return () => {
        current = false;
      };
    }, needs);
    return state;
  }

  // Keys for the whole page, except in fields. The handler uses the table of the latest rendering,
  // because effects run only after the next paint, too late for a quick second key.
  function useKeys(table) {
    const latest = useRef(table);
    latest.current = table;
    // Before the page is painted, so that no key pressed after a change of the page is lost.
    useLayoutEffect(() => {
      const onKey = (event) => {
        const busy = event.target.closest("input:not([type=range]), select, textarea, dialog");
        if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
        const act = latest.current[event.shiftKey && event.key.length > 1 ? `Shift+${event.key}` : event.key];
        if (!act) return;
        if (event.target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
        if (act(event) !== false) event.preventDefault();
      };
      document.addEventListener("keydown", onKey);
      return () => document.removeEventListener("keydown", onKey);
    }, []);
  }

  function Help({ keys }) {
    const close = (event) => event.target.closest("dialog").close();
    return h("dialog", { id: "help", "aria-labelledby": "help-title" }, [
      h("h2", { id: "help-title" }, "Keys"),
      h("dl", { class: "keys" }, keys.flatMap(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])),
      h("button", { type: "button", onClick: close, autofocus: true }, "Close"),
    ]);
  }
  const openHelp = () => {
    const dialog = document.getElementById("help");
    if (dialog && !dialog.open) dialog.showModal();
  };

  function Problem({ error }) {
    return h("p", { class: "problem", role: "alert" }, error.message);
  }

  const percent = (share) => (share === null || Number.isNaN(share) ? "-" : `${(100 * share).toFixed(1)} %`);
  const number = (value) => value.toLocaleString("en-US");

  tango.parts = { wordsOf, Mark, families, series, spoken, Choice, ThemeSwitch, useAnswer, useKeys, Help, openHelp, Problem, percent, number };
})();
