// Filters and sorts the list.
"use strict";
(() => {
  const { value, values } = tango.state;

  function conditions(contents, pairs) {
    const { columns, outcomes, statuses } = contents;
    const label = value(pairs, "column");
    const column = label ? columns.findIndex((one) => one.label === label) : null;
    if (column === -1) throw new Error(`column "${label}": no such column`);
    const at = (number, letters) =>
      number === null
        ? (row) => [...row.outcomes].some((letter) => letters.includes(letter))
        : (row) => letters.includes(row.outcomes[number]);
    const found = [];
    const benchmark = value(pairs, "of");
    if (benchmark) found.push((row) => row.benchmark === benchmark);
    const groups = new Map();
    for (const text of values(pairs, "group")) {
      const cut = text.indexOf("=");
      const [name, one] = cut < 0 ? [text, ""] : [text.slice(0, cut), text.slice(cut + 1)];
      groups.set(name, [...(groups.get(name) || []), one]);
    }
    for (const [name, allowed] of groups) {
      const kinds = new Set();
      contents.kinds.forEach((own, kind) => {
        if (own.some(([other, one]) => other === name && allowed.includes(one))) kinds.add(kind);
      });
      found.push((row) => kinds.has(row.kind));
    }
    const status = value(pairs, "status");
    if (status) found.push(at(column, letters(statuses, status, "status")));
    const outcome = value(pairs, "outcome");
    const { right, wrong } = outcomes;
    if (outcome === "differ") {
      const [r, w] = [at(column, right), at(column, wrong)];
      const [anyRight, anyWrong] = [at(null, right), at(null, wrong)];
      found.push((row) => (r(row) && anyWrong(row)) || (w(row) && anyRight(row)));
    } else if (outcome === "lost" || outcome === "won") {
      const [baseline, own] = outcome === "lost" ? [right, wrong] : [wrong, right];
      const compared = columns
        .map((one, number) => ({ number, base: one.baseline }))
        .filter(({ number, base }) => base !== null && (column === null || number === column));
      found.push((row) =>
        compared.some(
          ({ number, base }) =>
            baseline.includes(row.outcomes[base]) && own.includes(row.outcomes[number]),
        ),
      );
    } else if (outcome) {
      found.push(at(column, letters(outcomes, outcome, "outcome")));
    }
    return found;
  }

  function letters(table, key, name) {
    if (!Object.hasOwn(table, key)) throw new Error(`${name} "${key}": no such ${name}`);
    return table[key];
  }

  const words = (pairs, name = "q") => value(pairs, name).toLowerCase().split(/\s+/).filter(Boolean);
  const needsWords = (pairs) =>
    words(pairs).length > 0 || ["video", "id", "text"].includes(value(pairs, "sort"));

  // Rows: { question, clip, benchmark, kind, outcomes, and with words: id, text, options, video }.
  function selected(contents, rows, pairs) {
    const tests = conditions(contents, pairs);
    const wanted = words(pairs);
    const kept = rows.filter((row) => {
      if (!tests.every((test) => test(row))) return false;
      if (!wanted.length) return true;
      const text = [row.text, row.options, row.id, row.video].join("\n").toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
    return sorted(contents, kept, pairs);
  }

  // Function from a piece of replies to whether each question has a reply with all wanted words; null
  // without wanted words. A piece: { texts, of }, the distinct replies, and per question and column
  // the index of its reply, or -1.
  function replies(contents, pairs) {
    const wanted = words(pairs, "reply");
    if (!wanted.length) return null;
    const label = value(pairs, "column");
    const column = contents.columns.findIndex((one) => one.label === label);
    return ({ texts, of }) => {
      const holds = texts.map((text) => {
        const own = text.toLowerCase();
        return wanted.every((word) => own.includes(word));
      });
      return of.map((own) => (label ? holds[own[column]] === true : own.some((at) => holds[at] === true)));
    };
  }

  function sorted(contents, rows, pairs) {
    const key = value(pairs, "sort", "order");
    const sign = value(pairs, "desc") === "1" ? -1 : 1;
    const right = contents.outcomes.right;
    const of = {
      order: (row) => row.question,
      rights: (row) => [...row.outcomes].filter((letter) => right.includes(letter)).length,
      video: (row) => row.video,
      id: (row) => row.id,
      text: (row) => row.text,
    }[key];
    if (!of) throw new Error(`sort "${key}": no such order`);
    const keyed = rows.map((row) => [of(row), row]);
    keyed.sort(([a, x], [b, y]) => sign * (compared(a, b) || x.question - y.question));
    return keyed.map(([, row]) => row);
  }

  // Compare strings by code points; JavaScript compares UTF-16 units.
  function compared(a, b) {
    if (typeof a === "number") return a - b;
    const [x, y] = [Array.from(a), Array.from(b)];
    for (let at = 0; at < Math.min(x.length, y.length); at++) {
      const step = x[at].codePointAt(0) - y[at].codePointAt(0);
      if (step) return step;
    }
    return x.length - y.length;
  }

  tango.query = { selected, needsWords, replies };
})();
