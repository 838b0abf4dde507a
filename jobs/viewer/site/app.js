// Chooses the page by the URL.
"use strict";
(() => {
  const { h, render } = preact;
  const { useEffect, useState } = preactHooks;
  const { Problem, ThemeSwitch, openHelp, useAnswer } = tango.parts;

  function App() {
    const [where, set] = useState(tango.state.read());
    const { value: contents, error } = useAnswer(() => tango.data.contents(), []);
    useEffect(() => {
      const onMove = () => set(tango.state.read());
      window.addEventListener("hashchange", onMove);
      return () => window.removeEventListener("hashchange", onMove);
    }, []);
    const video = tango.state.value(where.pairs, "video");
    useEffect(() => {
      document.title = where.page === "clip" ? `${video} - tango viewer` : "tango viewer";
      if (where.page === "clip") window.scrollTo(0, 0);
      const main = document.getElementById("main");
      if (main && document.activeElement === document.body) main.focus({ preventScroll: true });
    }, [where.page, video]);
    const page = where.page === "clip" ? tango.Clip : tango.List;
    return [
      h("header", { class: "top" }, [
        h("a", { href: "#/list", class: "name" }, "tango viewer"),
        h("span", { class: "tools" }, [
          h(ThemeSwitch),
          h("button", { type: "button", onClick: openHelp, "aria-haspopup": "dialog" }, "Keys"),
        ]),
      ]),
      error && h("main", { id: "main" }, h(Problem, { error })),
      contents && h(page, { contents, pairs: where.pairs }),
      !contents && !error && h("p", { class: "loading", role: "status" }, "Loading the viewer ..."),
    ];
  }

  // The fragment is the state, so "skip" must not change it.
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    const main = document.getElementById("main");
    if (main) main.focus();
  });
  const root = document.getElementById("app");
  root.textContent = "";
  render(h(App), root);
})();
