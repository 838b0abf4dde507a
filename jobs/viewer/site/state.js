// The whole state is in the fragment of the URL, so that every view is a link.
"use strict";
window.tango = {};
(() => {
  // Filters of the list; links to clips keep them, for "next clip" and the way back to the list.
  const FILTERS = ["q", "reply", "of", "group", "column", "outcome", "status", "sort", "desc", "page"];

  function read() {
    const text = location.hash.replace(/^#/, "");
    const [path, query = ""] = text.split("?", 2);
    const pairs = query.split("&").filter(Boolean).map((pair) => {
      const at = pair.indexOf("=");
      return at < 0 ? [pair, ""] : [pair.slice(0, at), decoded(pair.slice(at + 1))];
    });
    return { page: path === "/clip" ? "clip" : "list", pairs };
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text.replace(/\+/g, " "));
    } catch {
      return text;
    }
  }

  function link(page, pairs) {
    const query = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    return `#/${page}${query ? `?${query}` : ""}`;
  }

  // `replace` replaces the entry of the browser's history, e.g. while a slider moves.
  function go(page, pairs, replace) {
    const target = link(page, pairs);
    if (target === location.hash) return;
    if (replace) {
      history.replaceState(null, "", target);
      window.dispatchEvent(new HashChangeEvent("hashchange"));
    } else {
      location.hash = target;
    }
  }

  const value = (pairs, name, otherwise = "") => {
    const found = pairs.filter(([own]) => own === name);
    return found.length ? found[found.length - 1][1] : otherwise;
  };
  const values = (pairs, name) => pairs.filter(([own]) => own === name).map(([, one]) => one);
  const without = (pairs, ...names) => pairs.filter(([name]) => !names.includes(name));
  const filters = (pairs) => pairs.filter(([name]) => FILTERS.includes(name));

  Object.assign(tango, { FILTERS, state: { read, link, go, value, values, without, filters } });
})();
