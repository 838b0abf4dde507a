// Loads the data of the page in pieces: from the server of `tango view`, or from the scripts of an export.
"use strict";
(() => {
  const isExport = document.documentElement.dataset.export === "1";

  // ---- pieces: JSON of a server, scripts of an export --------------------------------------------
  async function fetched(url) {
    let response;
    try {
      response = await fetch(url);
    } catch {
      throw new Error("The viewer does not answer: is `tango view` still running?");
    }
    if (!response.ok) throw new Error((await response.text()) || `status ${response.status}`);
    return response;
  }
  const waiting = new Map();
  const loaded = new Map();
  window.tangoData = (name, value) => {
    const found = waiting.get(name);
    waiting.delete(name);
    if (found) found(value);
  };
  function piece(name, keep = true) {
    if (loaded.has(name)) return loaded.get(name);
    const promise = isExport ? script(name) : fetched(`data/${name}`).then((found) => found.json());
    promise.catch(() => loaded.delete(name)); // the next request tries again
    if (keep) loaded.set(name, promise);
    return promise;
  }
  function script(name) {
    return new Promise((resolve, reject) => {
      waiting.set(name, resolve);
      const element = document.createElement("script");
      element.src = `data/${name}.js`;
      element.onload = () => element.remove();
      element.onerror = () => {
        waiting.delete(name);
        element.remove();
        reject(new Error(`data/${name}.js is missing or cannot be read; make the export again`));
      };
      document.head.append(element);
    });
  }

  let contents;
  const rows = [];
  let withWords = false;
  const count = (size) => Math.ceil(contents.questions / size);
  async function list(needsWords) {
    if (!rows.length) {
      const parts = await Promise.all(
        Array.from({ length: count(contents.list_rows) }, (_, at) => piece(`list/${at}`)),
      );
      for (const part of rows.length ? [] : parts) {
        part.clip.forEach((clip, at) => {
          rows.push({
            question: rows.length,
            clip,
            benchmark: part.benchmark[at],
            kind: part.kind[at],
            outcomes: part.outcomes[at],
          });
        });
      }
    }
    if (needsWords && !withWords) {
      const parts = Array.from({ length: count(contents.word_rows) }, (_, at) => words(at));
      await Promise.all(parts);
      withWords = true;
    }
    return rows;
  }
  async function words(number) {
    const part = await piece(`words/${number}`);
    part.id.forEach((id, at) => {
      const row = rows[number * contents.word_rows + at];
      Object.assign(row, { id, text: part.text[at], options: part.options[at], video: part.video[at] });
    });
  }

  // Replies are read piece by piece and not kept; only which questions of a piece match is kept.
  let matched = { key: "", parts: new Map() };
  function repliesOf(part, key, test) {
    if (matched.key !== key) matched = { key, parts: new Map() };
    const { parts } = matched;
    if (!parts.has(part)) {
      const own = piece(`replies/${part}`, false).then(test);
      own.catch(() => parts.delete(part)); // the next search tries again
      parts.set(part, own);
    }
    return parts.get(part);
  }
  async function selected(pairs) {
    const all = await list(tango.query.needsWords(pairs));
    const found = tango.query.selected(contents, all, pairs);
    const test = tango.query.replies(contents, pairs);
    if (!test) return found;
    const key = JSON.stringify([tango.state.value(pairs, "reply"), tango.state.value(pairs, "column")]);
    const kept = [];
    for (const row of found) {
      const part = Math.floor(row.question / contents.word_rows);
      const own = await repliesOf(part, key, test);
      if (own[row.question - part * contents.word_rows]) kept.push(row);
    }
    return kept;
  }

  const source = {
    async contents() {
      contents = await piece("start/0");
      return contents;
    },
    async questions(pairs) {
      const found = await selected(pairs);
      const page = Number(tango.state.value(pairs, "page", "0")) || 0;
      const shown = found.slice(page * contents.page, (page + 1) * contents.page);
      const parts = new Set(shown.map((row) => Math.floor(row.question / contents.word_rows)));
      await Promise.all([...parts].map(words));
      return { total: found.length, clips: new Set(found.map((row) => row.clip)).size, page, rows: shown };
    },
    async clip(benchmark, video, pairs) {
      const all = await piece("videos/0");
      const number = all.findIndex(([b, v]) => b === benchmark && v === video);
      if (number < 0) throw new Error(`no run has questions about the clip "${video}" of "${benchmark}"`);
      const [page, rows] = await Promise.all([piece(`clips/${number}`, false), selected(pairs)]);
      const order = [...new Set(rows.map((row) => row.clip))];
      const at = order.indexOf(number);
      const found = at >= 0;
      const previous = found ? (order[at - 1] ?? null) : null;
      return { ...page, previous, next: found ? (order[at + 1] ?? null) : null };
    },
    names: async (clip) => (await piece("videos/0"))[clip],
    tokens: (clip, columns) =>
      piece(`tokens/${clip}${isExport ? "" : `?columns=${columns.join(",")}`}`, false),
    async picture(url) {
      // The server's response has the reason if a picture is missing.
      return image(isExport ? url : URL.createObjectURL(await (await fetched(url)).blob()));
    },
  };

  function image(url) {
    return new Promise((resolve, reject) => {
      const found = new Image();
      found.onload = () => resolve(found);
      found.onerror = () => reject(new Error("A picture of frames cannot be loaded."));
      found.src = url;
    });
  }

  // Cache of the latest pictures.
  const pictures = new Map();
  const MOST = 48;
  function picture(url) {
    let found = pictures.get(url);
    pictures.delete(url);
    if (!found) {
      found = source.picture(url);
      found.catch(() => pictures.delete(url));
    }
    pictures.set(url, found);
    if (pictures.size > MOST) {
      const [[oldest, promise]] = pictures;
      pictures.delete(oldest);
      promise.then((one) => URL.revokeObjectURL(one.src), () => {});
    }
    return found;
  }

  tango.data = { ...source, picture, isExport };
})();
