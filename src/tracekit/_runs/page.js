"use strict";
// Shows the runs of the page's data block. Everything recorded reaches the page as text: nothing here makes markup of it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const app = document.getElementById("app");
  const ROW = 25;
  const FAMILIES = ["llm", "tool", "http", "process", "span"];
  // What would change how the text around it reads, or can't be seen: shown by its number.
  const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

  // -- elements ----------------------------------------------------------------------------------------------------------

  const visible = (text) => String(text).replace(HIDDEN, (one) => `‹U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
  function el(name, about, ...inside) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(about || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value === true ? "" : value);
    }
    add(made, inside);
    return made;
  }
  function add(to, inside) {
    for (const one of inside.flat(Infinity)) {
      if (one === undefined || one === null || one === false || one === "") continue;
      to.append(one instanceof Node ? one : visible(one));
    }
    return to;
  }
  const laneName = (run, lane) => run.lanes[lane].replace(/[^/ ]*<locals>\./g, "");
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  function duration(ns) {
    if (ns < 1e6) return `${Math.floor(ns / 1e3)} µs`;
    if (ns < 1e9) return `${Math.floor(ns / 1e6)} ms`;
    if (ns < 1e11) return `${(ns / 1e9).toFixed(1)} s`;
    if (ns < 7.2e12) return `${(ns / 6e10).toFixed(0)} min`;
    return ns < 1.728e14 ? `${(ns / 3.6e12).toFixed(0)} h` : `${(ns / 8.64e13).toFixed(0)} d`;
  }

  // -- texts and values ----------------------------------------------------------------------------------------------------

  const textOf = (number) => (Array.isArray(data.texts[number]) ? data.texts[number][0] : data.texts[number]);
  const cutOf = (number) => (Array.isArray(data.texts[number]) ? data.texts[number][1] : 0);
  const isReference = (value) => typeof value === "string" && value[0] === "\u0001";
  const SHOWN = 4000;

  // A fact's text as it is.
  const plainly = (found) => (typeof found !== "string" ? value(found, 1) : isReference(found) ? textBlock(Number(found.slice(1))) : found.replace(/^\u0002/, ""));

  // A text as a block; of a long one its beginning, and a button for the rest.
  function block(text, cut) {
    const pre = el("pre", {}, text.length > SHOWN * 1.5 ? text.slice(0, SHOWN) : text);
    const notes = [];
    if (text.length > SHOWN * 1.5) {
      const more = el("button", { class: "fold", onclick: () => { pre.textContent = visible(text); more.remove(); } },
        `… ${(text.length - SHOWN).toLocaleString("en")} more characters`);
      notes.push(more);
    }
    if (cut) notes.push(el("div", { class: "cut" }, `cut here: ${(cut - text.length).toLocaleString("en")} more characters are in the trace (tracekit report --whole)`));
    return notes.length ? el("div", {}, pre, notes) : pre;
  }
  const textBlock = (number) => block(textOf(number), cutOf(number));

  function value(found, depth = 0) {
    if (found === null) return el("span", { class: "lit" }, "None");
    if (typeof found === "boolean") return el("span", { class: "lit" }, found ? "True" : "False");
    if (typeof found === "number") return el("span", { class: "num" }, String(found));
    if (typeof found === "string") {
      if (found[0] === "\u0002") return el("span", { class: "num" }, found.slice(1));
      const number = isReference(found) ? Number(found.slice(1)) : -1;
      const text = number < 0 ? found : textOf(number);
      if (depth && text.length < 100 && !text.includes("\n")) return el("span", { class: "str" }, JSON.stringify(text));
      return block(text, number < 0 ? 0 : cutOf(number));
    }
    let kind = "";
    const keys = Object.keys(found);
    if (!Array.isArray(found) && keys.length === 1 && keys[0][0] === "\u0001") {
      kind = textOf(Number(keys[0].slice(1)));
      found = found[keys[0]];
    }
    const items = Array.isArray(found)
      ? found.map((one, n) => [String(n), one])
      : Object.entries(found).map(([key, one]) => [key[0] === "\u0002" ? key.slice(1) : key, one]);
    const box = el("div", { class: "val" }, kind && el("div", { class: "cls" }, kind));
    if (!items.length) return el("span", { class: "lit" }, kind, Array.isArray(found) ? "[]" : "{}");
    let at = 0;
    const more = () => {
      for (const [key, one] of items.slice(at, at + 200)) box.append(pair(key, one, depth));
      at += 200;
      if (at < items.length) {
        const button = el("button", { class: "fold", onclick: () => { button.remove(); more(); } }, `… ${items.length - at} more`);
        box.append(button);
      }
    };
    more();
    return box;
  }
  function pair(key, one, depth) {
    if (one !== null && typeof one === "object" && Object.keys(one).length) {
      const count = Object.keys(one).length;
      const inner = el("details", {}, el("summary", {}, el("span", { class: "key" }, key), Array.isArray(one) ? ` [${count}]` : ` {${count}}`));
      const fill = () => { if (inner.open && inner.children.length === 1) inner.append(value(one, depth + 1)); };
      inner.addEventListener("toggle", fill);
      inner.open = depth < 2 && count <= 40;
      fill();
      return inner;
    }
    return el("div", {}, el("span", { class: "key" }, key), ": ", value(one, depth + 1));
  }

  // -- differences of texts --------------------------------------------------------------------------------------------------

  function difference(before, now, units) {
    if (!units) return el("div", {}, el("div", { class: "message minus" }, el("span", { class: "mark" }, "-"), block(before)),
      el("div", { class: "message plus" }, el("span", { class: "mark" }, "+"), block(now)));
    const lines = units[0] === "line";
    const split = (text) => (lines ? text.split("\n") : text.match(/[ \t\r\n]+|[^ \t\r\n]+/g) || []);
    const [old, fresh] = [split(before), split(now)];
    const box = el(lines ? "div" : "pre", { class: "diff mono" });
    let [i, j] = [0, 0];
    units.slice(1).forEach(([sign, count], at) => {
      const part = sign === "+" ? fresh.slice(j, j + count) : old.slice(i, i + count);
      if (sign !== "+") i += count;
      if (sign !== "-") j += count;
      if (sign !== "=") {
        if (lines) for (const line of part) box.append(el("div", {}, el(sign === "+" ? "ins" : "del", {}, `${sign} ${line}`)));
        else box.append(el(sign === "+" ? "ins" : "del", {}, part.join("")));
        return;
      }
      const around = lines ? 3 : 40;
      const [first, last] = [at === 0 ? 0 : around, at === units.length - 2 ? 0 : around];
      const show = (some) => (lines ? some.map((line) => el("div", {}, `  ${line}`)) : [some.join("")]);
      if (count <= first + last + 2) { add(box, show(part)); return; }
      const gap = el(lines ? "div" : "a", { class: "gap", onclick: () => gap.replaceWith(...show(part.slice(first, count - last)).map((one) => one instanceof Node ? one : visible(one))) },
        lines ? `  … ${plural(count - first - last, "line")} as before` : " … ");
      add(box, [show(part.slice(0, first)), gap, last ? show(part.slice(count - last)) : []]);
    });
    return box;
  }

  // -- prompts -----------------------------------------------------------------------------------------------------------------

  // The messages of a prompt: those of the turn before it, edited.
  function applied(old, edits) {
    const made = [];
    let at = 0;
    for (const [sign, ...about] of edits) {
      if (sign === "=") { for (let n = 0; n < about[0]; n++) made.push(old[at++]); }
      else if (sign === "-") at += about[0];
      else { made.push(...about); if (sign === "~") at += about.length; }
    }
    return made;
  }
  function promptOf(run, number) {
    const chain = [];
    for (let at = number; at !== undefined && at !== null; at = run.steps[at].call.previous) chain.push(at);
    return chain.reverse().reduce((old, at) => applied(old, run.steps[at].call.edits || []), []);
  }
  const asked = (requests) => (requests || []).map(([name, given]) =>
    el("div", { class: "asks" }, "asks for ", el("b", {}, name), value(given, 1)));
  function message(number, mark, instead) {
    const one = data.messages[number];
    const role = ["assistant", "user", "tool", "system"].includes(one.role) ? one.role : "";
    const look = { "+": "plus", "-": "minus", "~": "tilde" }[mark] || "";
    return el("div", { class: `message ${role} ${look}` },
      el("div", { class: "role" }, mark && mark !== "=" && el("span", { class: "mark" }, mark), one.role, one.answers && ` · result of ${one.answers}`),
      instead || (one.text !== undefined && textBlock(one.text)), asked(one.asks), (one.others || []).map((other) => el("div", { class: "cls" }, `[${other}]`)));
  }
  function changed(before, now) {
    const [old, fresh] = [data.messages[before], data.messages[now]];
    if (old.text === undefined || fresh.text === undefined || old.text === fresh.text) return [message(before, "-"), message(now, "+")];
    return [message(now, "~", difference(textOf(old.text), textOf(fresh.text), data.diffs[`${old.text}:${fresh.text}`]))];
  }
  // What was changed between two prompts; what is the same in both is folded.
  function edited(old, edits, all) {
    const made = [];
    let at = 0;
    for (const [sign, ...about] of edits) {
      if (sign === "=") {
        const same = old.slice(at, at + about[0]);
        at += about[0];
        if (all) made.push(...same.map((one) => message(one)));
        else {
          const fold = el("button", { class: "fold", onclick: () => fold.replaceWith(...same.map((one) => message(one))) }, `… ${plural(same.length, "message")} as before`);
          made.push(fold);
        }
      } else if (sign === "-") { made.push(...old.slice(at, at + about[0]).map((one) => message(one, "-"))); at += about[0]; }
      else if (sign === "+") made.push(...about.map((one) => message(one, all ? "" : "+")));
      else for (const one of about) made.push(...changed(old[at++], one));
    }
    return made;
  }

  // -- a step --------------------------------------------------------------------------------------------------------------------

  const family = (step) => (FAMILIES.includes(step.kind) ? step.kind : "other");
  const failed = (step) => step.error !== undefined || step.state === "in doubt" || step.state === "cut off";
  const section = (title, note, ...inside) => [el("h3", {}, title, note && (note instanceof Node ? note : el("small", {}, note))), inside];
  function stepLine(step) {
    return [step.name && el("b", {}, step.name), step.asked && (step.kind === "tool" ? step.asked : ` ${step.asked}`),
      step.came && " → ", step.came && el("span", { class: failed(step) ? "came bad-text" : "came" }, step.came)];
  }
  function details(run, number) {
    const step = run.steps[number];
    const made = [el("h2", {}, `${step.at} ${step.kind} `, el("b", {}, step.name), " ", step.state && el("span", { class: `badge ${failed(step) ? "bad" : "info"}` }, step.state)),
      el("dl", { class: "facts" }, (step.facts || []).map(([name, text]) => [el("dt", {}, name), el("dd", {}, plainly(text))]),
        step.in !== undefined && [el("dt", {}, "inside"), el("dd", {}, link(run, step.in))])];
    if (step.error !== undefined) made.push(section("Error", "", el("div", { class: "bad-text" }, value(step.error))));
    if (step.call) made.push(...call(run, number, step.call));
    if (step.input !== undefined) made.push(section("Input", "", el("div", { class: "box" }, value(step.input))));
    if (step.values) made.push(section("Values", "", el("div", { class: "box" }, value(step.values))));
    if (step.stream) made.push(...stream(step));
    if (step.returned) made.push(section("Output", "", el("div", { class: "box" }, value(step.output))));
    return made;
  }
  const link = (run, number) => el("a", { onclick: () => select(run, number) }, `${run.steps[number].at} ${run.steps[number].kind} ${run.steps[number].name}`);
  function call(run, number, about) {
    const before = about.previous !== undefined ? promptOf(run, about.previous) : [];
    const edits = about.edits || [];
    const count = (wanted) => edits.filter(([sign]) => sign === wanted).reduce((sum, [sign, ...of]) => sum + (sign === "-" ? of[0] : of.length), 0);
    const counts = [[count("+"), "added"], [count("~"), "changed"], [count("-"), "removed"]].filter(([n]) => n).map(([n, word]) => `${n} ${word}`);
    const total = applied(before, edits).length;
    const body = el("div", {});
    let all = about.previous === undefined;
    const draw = () => body.replaceChildren(...(all ? applied(before, edits).map((one) => message(one)) : edited(before, edits, false)));
    const note = el("small", {}, plural(total, "message"), about.previous !== undefined ? ["; since step ", link(run, about.previous), `: ${counts.join(", ") || "nothing changed"}`] : "");
    const toggle = about.previous !== undefined && el("button", { onclick: () => { all = !all; toggle.textContent = all ? "what changed" : "all messages"; draw(); } }, "all messages");
    draw();
    const answer = [about.reasoning !== undefined && el("div", { class: "box" }, el("div", { class: "cls" }, "thinking"), textBlock(about.reasoning)),
      about.text !== undefined && el("div", { class: "message assistant" }, textBlock(about.text)), about.asks && el("div", { class: "message assistant" }, asked(about.asks)),
      about.refusal !== undefined && el("div", { class: "bad-text" }, "refuses: ", textBlock(about.refusal))].filter(Boolean);
    return [[el("h3", {}, `Prompt to ${about.model}`, note, toggle), body], about.tools && section("Tools offered", "", el("div", {}, about.tools.join(", "))),
      about.parameters && section("Parameters", "", el("div", { class: "box" }, value(about.parameters))), answer.length ? section("Answer", about.usage, answer) : []];
  }
  function stream(step) {
    const about = step.stream;
    const note = `${plural(about.count, "piece")}, the first after ${duration(about.first)}`;
    if (!about.pieces) return section("Stream", note);
    const texts = about.pieces.filter((one) => typeof one === "string" && one[0] !== "\u0002").map((one) => (isReference(one) ? textOf(Number(one.slice(1))) : one));
    const whole = texts.length === about.pieces.length && el("div", { class: "box" }, block(texts.join("")));
    const pieces = el("details", { open: !whole }, el("summary", {}, "piece by piece"), el("div", { class: "box" }, value(about.pieces)));
    const missing = about.count > about.pieces.length && el("div", { class: "cut" }, `${plural(about.count - about.pieces.length, "more piece")} in the trace (tracekit report --whole)`);
    return section("Stream", note, whole, pieces, missing);
  }

  // -- the run as a whole: what is shown while no step is chosen ------------------------------------------------------------------

  function overview(run) {
    const kinds = new Map();
    for (const step of run.steps) {
      if (step.quiet) continue;
      const sum = kinds.get(step.kind) || { count: 0, took: 0, failed: 0 };
      sum.count += 1; sum.took += step.took || 0; sum.failed += failed(step) ? 1 : 0;
      kinds.set(step.kind, sum);
    }
    const numbers = run.steps.map((_, n) => n);
    const broken = numbers.filter((n) => failed(run.steps[n]));
    const slow = numbers.filter((n) => run.steps[n].took > 0 && run.steps[n].kind !== "span").sort((a, b) => run.steps[b].took - run.steps[a].took).slice(0, 8);
    const line = (n) => el("tr", {}, el("td", {}, link(run, n)), el("td", { class: "n" }, run.steps[n].took ? duration(run.steps[n].took) : ""), el("td", { class: "bad-text" }, failed(run.steps[n]) ? run.steps[n].came : ""));
    return [el("h2", {}, run.name),
      section("Steps", "", el("table", {}, el("tr", {}, ["kind", "count", "time", "failed"].map((one) => el("th", {}, one))),
        [...kinds].sort((a, b) => b[1].count - a[1].count).map(([kind, sum]) => el("tr", {}, el("td", {}, kind), el("td", { class: "n" }, sum.count.toLocaleString("en")),
          el("td", { class: "n" }, sum.took ? duration(sum.took) : ""), el("td", { class: "n" }, sum.failed || ""))))),
      broken.length ? section("Failed, cut off or in doubt", "", el("table", {}, broken.slice(0, 50).map(line)), broken.length > 50 && `… ${broken.length - 50} more`) : [],
      slow.length ? section("Longest", "", el("table", {}, slow.map(line))) : [],
      run.given !== undefined && run.given !== null && section("Given", "", el("div", { class: "box" }, value(run.given))),
      run.result !== undefined && run.result !== null && section("Result", "", el("div", { class: "box" }, value(run.result))),
      section("Keys", "", el("div", {}, keyHelp()))];
  }
  const KEYS = [["j k ↓ ↑", "next, previous step"], ["g G", "first, last step"], ["Enter", "its details"], ["/", "search"], ["f", "only what failed"], ["a", "bookkeeping, too"], ["t", "whole time line"], ["Esc", "back"]];
  const keyHelp = () => el("table", {}, KEYS.map(([keys, what]) => el("tr", {}, el("td", {}, keys.split(" ").map((one) => [el("kbd", {}, one), " "])), el("td", {}, what))));

  // -- one run: bar, time line, list, details ---------------------------------------------------------------------------------------

  const views = new Map();
  class View {
    constructor(run) {
      this.run = run;
      this.kinds = new Set(); this.lane = ""; this.failed = false; this.all = false; this.query = "";
      this.at = -1; this.shown = []; this.position = new Map(); this.rows = new Map();
      this.depths = [];
      for (const step of run.steps) this.depths.push(step.in === undefined ? 0 : Math.min(8, this.depths[step.in] + 1));
      this.build();
      this.time = new TimeLine(this);
      this.filter();
    }
    build() {
      const run = this.run, counts = new Map();
      for (const step of run.steps) if (!step.quiet) counts.set(step.kind, (counts.get(step.kind) || 0) + 1);
      this.search = el("input", { type: "search", placeholder: "Search everything  ( / )", "aria-label": "search", oninput: () => this.later() });
      const chips = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 9).map(([kind, count]) => {
        const chip = el("button", { class: `chip k-${FAMILIES.includes(kind) ? kind : "other"}`, "aria-pressed": "false", onclick: () => {
          this.kinds.has(kind) ? this.kinds.delete(kind) : this.kinds.add(kind);
          chip.setAttribute("aria-pressed", String(this.kinds.has(kind)));
          this.filter();
        } }, el("i", {}), `${kind} ${count.toLocaleString("en")}`);
        return chip;
      });
      const lanes = el("select", { "aria-label": "line of execution", onchange: () => { this.lane = lanes.value; this.filter(); } },
        el("option", { value: "" }, `all ${run.lanes.length} lanes`), run.lanes.map((_, n) => el("option", { value: String(n) }, laneName(run, n))));
      this.flags = { failed: this.flag("failed", "failed"), all: this.flag("all", "bookkeeping") };
      this.count = el("span", { class: "count", role: "status" });
      this.space = el("div", { class: "space" });
      this.list = el("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": "steps", onscroll: () => this.draw() }, this.space);
      this.details = el("div", { class: "details", tabindex: "-1", "aria-live": "polite" });
      this.split = el("div", { class: "split" }, this.list, this.details);
      this.line = el("div", { class: "timeline" });
      this.element = el("div", { hidden: true, class: "view" },
        el("div", { class: "bar" }, this.search, chips, run.lanes.length > 1 && lanes, this.flags.failed, this.flags.all, this.count), this.line, this.split);
      Object.assign(this.element.style, { display: "contents" });
      this.show();
    }
    flag(name, text) {
      const made = el("button", { class: "chip", "aria-pressed": "false", onclick: () => this.toggle(name) }, text);
      return made;
    }
    toggle(name) {
      this[name] = !this[name];
      this.flags[name].setAttribute("aria-pressed", String(this[name]));
      this.filter();
    }
    later() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => { this.query = this.search.value; this.filter(); }, 100);
    }
    filter() {
      const wanted = this.query.trim().toLowerCase(), found = wanted ? matching(this.run, wanted) : null;
      this.shown = [];
      this.run.steps.forEach((step, n) => {
        if (this.kinds.size ? !this.kinds.has(step.kind) : step.quiet && !this.all && !found) return;
        if (this.lane !== "" && step.lane !== Number(this.lane)) return;
        if (this.failed && !failed(step)) return;
        if (found && !found(n)) return;
        this.shown.push(n);
      });
      this.position = new Map(this.shown.map((n, at) => [n, at]));
      const total = this.run.steps.length;
      this.count.textContent = this.shown.length === total ? plural(total, "step") : `${this.shown.length.toLocaleString("en")} of ${plural(total, "step")}`;
      this.space.style.height = `${this.shown.length * ROW}px`;
      for (const row of this.rows.values()) row.remove();
      this.rows.clear();
      this.space.replaceChildren(...(this.shown.length ? [] : [el("div", { class: "none" }, "No step is like that.")]));
      if (!this.shown.length) this.space.style.height = "60px";
      this.draw();
      this.time.draw();
    }
    draw() {
      const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 10);
      const last = Math.min(this.shown.length, Math.ceil((this.list.scrollTop + (this.list.clientHeight || 800)) / ROW) + 10);
      for (const [at, row] of this.rows) if (at < first || at >= last) { row.remove(); this.rows.delete(at); }
      for (let at = first; at < last; at++) if (!this.rows.has(at)) {
        const row = this.row(this.shown[at]);
        row.style.top = `${at * ROW}px`;
        this.rows.set(at, row);
        this.space.append(row);
      }
    }
    row(n) {
      const step = this.run.steps[n];
      const row = el("div", { class: `row k-${family(step)}${step.quiet ? " quiet" : ""}`, role: "option", id: `s${data.runs.indexOf(this.run)}-${n}`, "aria-selected": String(n === this.at), onclick: () => this.pick(n, true) },
        el("span", { class: "at" }, String(step.at).replace(/^[^:]*:/, ":")), el("span", { class: "kind" }, step.kind),
        el("span", { class: "what" }, el("span", { class: "asked" }, step.name && el("b", {}, step.name), step.asked && (step.kind === "tool" ? step.asked : ` ${step.asked}`)),
          step.came && el("span", { class: failed(step) ? "came bad-text" : "came" }, el("i", {}, "→ "), step.came)),
        el("span", { class: "side" }, step.class === "irreversible" && el("b", {}, "irreversible "), el("span", { class: "more" }, step.agent && `@${step.agent} `,
          this.run.lanes.length > 1 && this.lane === "" && step.lane ? `[${laneName(this.run, step.lane).split("/").pop()}] ` : "",
          step.call && step.call.tokens && `${step.call.tokens[0].toLocaleString("en")}+${step.call.tokens[1].toLocaleString("en")} `, step.call && step.call.cost && `${step.call.cost} `),
          step.took !== undefined && duration(step.took)));
      row.style.paddingLeft = `${8 + (this.query || this.kinds.size ? 0 : this.depths[n] * 14)}px`;
      return row;
    }
    // Choose a step; `open` shows its details where there is room for one of both only.
    pick(n, open) {
      this.at = n;
      for (const [at, row] of this.rows) row.setAttribute("aria-selected", String(this.shown[at] === n));
      this.list.setAttribute("aria-activedescendant", `s${data.runs.indexOf(this.run)}-${n}`);
      if (open) this.split.classList.add("open");
      this.show();
      this.time.draw();
      history.replaceState(null, "", `#${data.runs.indexOf(this.run)}/${this.run.steps[n].at}`);
    }
    reveal() {
      const at = this.position.get(this.at);
      if (at === undefined) return;
      const [top, height] = [at * ROW, this.list.clientHeight];
      if (top < this.list.scrollTop + ROW) this.list.scrollTop = Math.max(0, top - ROW);
      else if (top > this.list.scrollTop + height - 2 * ROW) this.list.scrollTop = top - height + 2 * ROW;
      this.draw();
    }
    move(by) {
      if (!this.shown.length) return;
      const now = this.position.get(this.at);
      const at = now === undefined ? (by > 0 ? 0 : this.shown.length - 1) : Math.max(0, Math.min(this.shown.length - 1, now + by));
      this.pick(this.shown[at], false);
      this.reveal();
    }
    show() {
      const back = el("button", { class: "back", onclick: () => this.close() }, "← steps");
      this.details.replaceChildren();
      add(this.details, [back, this.at < 0 ? overview(this.run) : details(this.run, this.at)]);
      this.details.scrollTop = 0;
    }
    close() {
      if (this.split.classList.contains("open")) { this.split.classList.remove("open"); this.list.focus(); return; }
      if (this.query) { this.search.value = this.query = ""; this.filter(); return; }
      if (this.at >= 0) {
        this.at = -1;
        for (const row of this.rows.values()) row.setAttribute("aria-selected", "false");
        history.replaceState(null, "", "#");
        this.show(); this.time.draw();
      }
    }
  }

  // -- search: in lines, texts and values; of a prompt in what a turn has added -----------------------------------------------------

  let lowered = null;
  function matching(run, wanted) {
    lowered = lowered || data.texts.map((one) => (Array.isArray(one) ? one[0] : one).toLowerCase());
    const texts = new Set();
    lowered.forEach((text, n) => { if (text.includes(wanted)) texts.add(n); });
    const inside = (one) => {
      if (one === null || one === undefined) return false;
      if (typeof one === "string") return isReference(one) ? texts.has(Number(one.slice(1))) : one.toLowerCase().includes(wanted);
      if (typeof one !== "object") return String(one).includes(wanted);
      return Array.isArray(one) ? one.some(inside) : Object.entries(one).some(([key, item]) => inside(key) || inside(item));
    };
    const messages = data.messages.map((one) => texts.has(one.text) || inside(one.asks) || inside(one.answers));
    return (n) => {
      const step = run.steps[n];
      if (inside(step.asked) || inside(step.came) || inside(step.name) || inside(step.kind) || inside(step.error) || inside(step.agent)) return true;
      if (inside(step.input) || inside(step.output) || inside(step.values) || inside(step.facts) || (step.stream && inside(step.stream.pieces))) return true;
      const about = step.call;
      return Boolean(about) && (texts.has(about.text) || texts.has(about.reasoning) || texts.has(about.refusal) || inside(about.asks) || inside(about.parameters) || inside(about.tools)
        || (about.edits || []).some(([sign, ...of]) => (sign === "+" || sign === "~") && of.some((one) => messages[one])));
    };
  }

  // -- the time line ------------------------------------------------------------------------------------------------------------------

  class TimeLine {
    constructor(view) {
      this.view = view;
      const run = view.run;
      this.end = Math.max(1, run.took, ...[run.steps.reduce((most, step) => Math.max(most, step.t + (step.took || 0)), 0)]);
      [this.from, this.to] = [0, this.end];
      this.height = run.lanes.length > 10 ? 13 : 19;
      this.canvas = el("canvas", { role: "img", "aria-label": `time line of ${plural(run.lanes.length, "lane")}; the list below has the same steps` });
      this.space = el("div", { class: "space" });
      this.reset = el("button", { class: "reset", hidden: true, onclick: () => this.zoom(0, this.end) }, "whole time line (t)");
      this.tip = el("div", { class: "tip", hidden: true });
      this.scroll = view.line;
      add(this.scroll, [this.space, this.canvas, this.reset]);
      document.body.append(this.tip);
      this.boxes = [];
      this.scroll.addEventListener("scroll", () => this.draw());
      this.canvas.addEventListener("pointerdown", (event) => { this.drag = [this.x(event), this.x(event)]; this.canvas.setPointerCapture(event.pointerId); });
      this.canvas.addEventListener("pointermove", (event) => this.over(event));
      this.canvas.addEventListener("pointerup", (event) => this.drop(event));
      this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      this.canvas.addEventListener("dblclick", () => this.zoom(0, this.end));
      this.canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        const at = this.time(this.x(event)), scale = event.deltaY > 0 ? 1.25 : 0.8;
        this.zoom(Math.max(0, at - (at - this.from) * scale), Math.min(this.end, at + (this.to - at) * scale));
      }, { passive: false });
      this.shorten();
    }
    // A program that imports for seconds and then works for a tenth of one: begin with the part in which something happens.
    shorten() {
      let [from, to] = [this.end, 0];
      for (const step of this.view.run.steps) {
        if (step.quiet) continue;
        [from, to] = [Math.min(from, step.t), Math.max(to, step.t + (step.took || 0))];
      }
      const aside = (to - from) / 30;
      if (to - from >= 1000 && to - from < this.end / 2) {
        [this.from, this.to] = [Math.max(0, from - aside), Math.min(this.end, to + aside)];
        this.reset.hidden = false;
      }
    }
    x(event) { return event.clientX - this.canvas.getBoundingClientRect().left; }
    time(x) { return this.from + ((x - this.left) / (this.width - this.left - 10)) * (this.to - this.from); }
    place(t) { return this.left + ((t - this.from) / (this.to - this.from)) * (this.width - this.left - 10); }
    zoom(from, to) {
      if (to - from < 1000) return;
      [this.from, this.to] = [from, to];
      this.reset.hidden = from <= 0 && to >= this.end;
      this.draw();
    }
    hit(event) {
      const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      let best = -1;
      for (const [n, left, right, top, bottom] of this.boxes) if (x >= left - 2 && x <= right + 2 && y >= top && y <= bottom) best = n;
      return best;
    }
    over(event) {
      if (this.drag) { this.drag[1] = this.x(event); if (Math.abs(this.drag[1] - this.drag[0]) > 4) { this.draw(); return; } }
      const n = this.hit(event);
      this.tip.hidden = n < 0;
      if (n < 0) return;
      const step = this.view.run.steps[n];
      this.tip.textContent = visible(`${step.at} ${step.kind} ${step.name}${step.took !== undefined ? `, ${duration(step.took)}` : ""}${step.state ? `, ${step.state}` : ""}\n${this.view.run.lanes[step.lane]}`);
      this.tip.style.left = `${Math.min(event.clientX + 12, innerWidth - 300)}px`;
      this.tip.style.top = `${event.clientY + 14}px`;
    }
    drop(event) {
      const [from, to] = this.drag || [0, 0];
      this.drag = null;
      if (Math.abs(to - from) > 4) { this.zoom(Math.max(0, this.time(Math.min(from, to))), Math.min(this.end, this.time(Math.max(from, to)))); return; }
      const n = this.hit(event);
      if (n >= 0) { this.view.pick(n, true); this.view.reveal(); }
    }
    draw() {
      const run = this.view.run, width = this.scroll.clientWidth;
      if (!width) return;
      const whole = 20 + run.lanes.length * this.height + 4, most = Math.max(90, innerHeight * 0.24), height = Math.min(whole, most);
      const scale = devicePixelRatio || 1, style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
      this.space.style.height = `${whole}px`;
      this.scroll.style.height = `${height}px`;
      if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
        [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
        Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
      }
      this.width = width;
      this.left = run.lanes.length > 1 ? (width < 600 ? 84 : 170) : 14;
      const pen = this.canvas.getContext("2d"), offset = this.scroll.scrollTop, down = 20 - offset;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const first = Math.max(0, Math.floor(offset / this.height) - 1), last = Math.min(run.lanes.length, first + Math.ceil(height / this.height) + 2);
      pen.save();
      pen.beginPath(); pen.rect(0, 20, width, height - 20); pen.clip();
      for (let lane = first; lane < last; lane++) {
        const y = down + lane * this.height;
        pen.fillStyle = colour("line");
        pen.fillRect(this.left, y + this.height - 1, width - this.left, 0.5);
        if (run.lanes.length > 1) {
          pen.fillStyle = colour("dim");
          pen.fillText(fitted(pen, visible(laneName(run, lane)), this.left - 14), 8, y + this.height / 2);
        }
      }
      this.boxes = [];
      const palette = Object.fromEntries([...FAMILIES, "other"].map((name) => [name, colour(name)])), bad = colour("bad");
      const here = this.view.position, back = colour("back");
      for (const pass of [0, 1]) run.steps.forEach((step, n) => {
        if ((pass === 0) !== (step.kind === "span") || (step.quiet && !this.view.all)) return;
        if (step.lane < first || step.lane >= last) return;
        const begin = Math.max(this.left, this.place(step.t)), end = Math.min(width - 10, this.place(step.t + (step.took || 0)));
        if (end < this.left || begin > width - 10) return;
        const inset = step.kind === "span" ? 0 : 2, y = down + step.lane * this.height + 1 + inset, tall = this.height - 3 - 2 * inset, wide = Math.max(1.5, end - begin);
        pen.globalAlpha = here.has(n) ? (step.kind === "span" ? 0.28 : 1) : 0.13;
        pen.fillStyle = failed(step) ? bad : palette[family(step)];
        pen.fillRect(begin, y, wide, tall);
        if (wide > 3 && step.kind !== "span") { pen.fillStyle = back; pen.fillRect(begin + wide - 0.7, y, 0.7, tall); }
        this.boxes.push([n, begin, begin + wide, y, y + tall]);
      });
      pen.globalAlpha = 1;
      if (this.view.at >= 0) {
        const step = run.steps[this.view.at], x = this.place(step.t);
        pen.strokeStyle = colour("ink");
        pen.lineWidth = 1.5;
        pen.strokeRect(x - 1, down + step.lane * this.height + 1, Math.max(4, this.place(step.t + (step.took || 0)) - x + 2), this.height - 3);
      }
      pen.restore();
      pen.fillStyle = colour("dim");
      const span = this.to - this.from, step = niceStep(span / Math.max(2, (width - this.left) / 110));
      for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
        const x = this.place(t);
        pen.fillRect(x, 14, 0.5, 6);
        pen.fillText(tick(t, step), Math.min(x + 2, width - 44), 8);
      }
      if (this.drag) {
        pen.globalAlpha = 0.2;
        pen.fillStyle = colour("info");
        pen.fillRect(Math.min(...this.drag), 0, Math.abs(this.drag[1] - this.drag[0]), height);
        pen.globalAlpha = 1;
      }
    }
  }
  function niceStep(rough) {
    const ten = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= rough) || 10 * ten;
  }
  function tick(t, step) {
    if (step >= 3.6e12) return `${+(t / 3.6e12).toFixed(1)} h`;
    if (step >= 1e9) return `${+(t / 1e9).toFixed(0)} s`;
    if (step >= 1e8) return `${(t / 1e9).toFixed(1)} s`;
    return step >= 1e6 ? `${+(t / 1e6).toFixed(0)} ms` : `${+(t / 1e3).toFixed(1)} µs`;
  }
  function fitted(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let cut = text.length;
    while (cut > 1 && pen.measureText(`…${text.slice(-cut)}`).width > width) cut -= 1;
    return `…${text.slice(-cut)}`;
  }

  // -- what differs between two runs ----------------------------------------------------------------------------------------------------

  function fields(found) {
    if (!found.length) return [];
    return el("table", {}, el("tr", {}, ["field", "before", "now"].map((one) => el("th", {}, one))), found.slice(0, 200).map((one) => {
      const units = one.diff && data.diffs[one.diff];
      if (units) {
        const [before, now] = one.diff.split(":").map((n) => textOf(Number(n)));
        return el("tr", {}, el("td", { class: "mono" }, one.path), el("td", { colspan: "2" }, difference(before, now, units)));
      }
      return el("tr", {}, el("td", { class: "mono" }, one.path), ["recorded", "actual"].map((side) => el("td", { class: "mono" }, side in one ? value(one[side], 1) : el("span", { class: "cls" }, "(not there)"))));
    }), found.length > 200 && el("tr", {}, el("td", {}, `… ${found.length - 200} more`)));
  }
  function differences() {
    const found = data.comparison, [before, now] = found.runs.map((n) => data.runs[n]);
    const counted = ["added", "removed", "changed", "moved"].map((op) => [op, found.steps.filter((one) => one.op === op).length]).filter(([, n]) => n);
    const box = el("div", { class: "differences" }, el("p", {}, el("b", {}, before.name, " ", el("code", {}, before.id)), " and ", el("b", {}, now.name, " ", el("code", {}, now.id)), ": ",
      counted.length || found.ends.length ? [counted.map(([op, n]) => `${n} ${op}`).join(", "), found.ends.length ? `${counted.length ? ", " : ""}another end` : ""] : "no difference", `; ${plural(found.same, "step")} the same`));
    for (const one of found.ends) box.append(el("div", { class: "card" }, el("h4", {}, el("span", { class: "op changed" }, "end"), one.process ? `of the process ${one.process}` : "of the run"), fields(one.fields)));
    let at = 0;
    const card = (one) => {
      const goto = (run, n) => (n === undefined || n < 0 ? null : el("a", { onclick: () => select(run, n) }, `${run.steps[n].at}`));
      const shown = one.now !== undefined && one.now >= 0 ? now.steps[one.now] : before.steps[one.before];
      const old = one.edits && one.before >= 0 ? promptOf(before, one.before) : [];
      return el("div", { class: "card" }, el("h4", {}, el("span", { class: `op ${one.op}` }, one.op), goto(before, one.before), one.before >= 0 && one.now >= 0 && " → ", goto(now, one.now),
        shown && [` ${shown.kind} `, stepLine(shown)]), one.edits && edited(old, one.edits, false), fields(one.fields));
    };
    const more = () => {
      for (const one of found.steps.slice(at, at + 100)) box.append(card(one));
      at += 100;
      if (at < found.steps.length) {
        const button = el("button", { class: "fold", onclick: () => { button.remove(); more(); } }, `… ${found.steps.length - at} more`);
        box.append(button);
      }
    };
    more();
    return box;
  }

  // -- the page -----------------------------------------------------------------------------------------------------------------------

  const tabs = [];
  let current = null;
  function open(number) {
    tabs.forEach((tab, n) => {
      tab.button.setAttribute("aria-selected", String(n === number));
      if (n === number && !tab.element) { tab.element = tab.make(); app.append(tab.element); }
      if (tab.element) { tab.element.hidden = n !== number; }
      for (const head of tab.heads) head.hidden = true;
    });
    for (const head of tabs[number].heads) head.hidden = false;
    current = tabs[number].view ? views.get(tabs[number].view) : null;
    if (current) { current.draw(); current.time.draw(); }
  }
  function select(run, n) {
    open(tabs.findIndex((tab) => tab.view === run));
    const view = views.get(run);
    if (!view.position.has(n)) {
      for (const name of ["failed"]) if (view[name]) view.toggle(name);
      view.kinds.clear(); view.lane = ""; view.search.value = view.query = "";
      for (const chip of view.element.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", "false");
      for (const choice of view.element.querySelectorAll("select")) choice.value = "";
      view.all = view.all || Boolean(run.steps[n].quiet);
      view.flags.all.setAttribute("aria-pressed", String(view.all));
      view.filter();
    }
    view.pick(n, true);
    view.reveal();
  }
  function start() {
    const heads = [...document.querySelectorAll("header section.run")];
    app.replaceChildren();
    if (data.comparison) tabs.push({ title: "Differences", heads, make: differences });
    data.runs.forEach((run, n) => tabs.push({ title: `${run.name} ${run.id.length > 12 ? `…${run.id.slice(-6)}` : run.id}`, heads: heads[n] ? [heads[n]] : [], view: run,
      make: () => { const view = new View(run); views.set(run, view); return view.element; } }));
    const bar = el("nav", { class: "tabs", role: "tablist" });
    tabs.forEach((tab, n) => { tab.button = el("button", { role: "tab", onclick: () => open(n) }, tab.title); bar.append(tab.button); });
    if (tabs.length > 1) app.append(bar);
    for (const [n, head] of heads.entries()) for (const one of head.querySelectorAll(".ref")) one.addEventListener("click", () => {
      const at = data.runs[n].steps.findIndex((step) => String(step.at) === one.dataset.step);
      if (at >= 0) select(data.runs[n], at);
    });
    const [, run, at] = /^#(\d+)\/(.+)$/.exec(decodeURIComponent(location.hash)) || [];
    const wanted = data.runs[Number(run)], step = wanted ? wanted.steps.findIndex((one) => String(one.at) === at) : -1;
    open(0);
    if (step >= 0) select(wanted, step);
    addEventListener("resize", () => { if (current) { current.draw(); current.time.draw(); } });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (current) current.time.draw(); });
    document.addEventListener("keydown", key);
    document.documentElement.dataset.ready = "1";
  }
  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !current) return;
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (typing && event.key !== "Escape" && event.key !== "Enter") return;
    if (event.target instanceof HTMLButtonElement && event.key === "Enter") return;
    const actions = {
      j: () => current.move(1), k: () => current.move(-1), ArrowDown: () => current.move(1), ArrowUp: () => current.move(-1),
      PageDown: () => current.move(20), PageUp: () => current.move(-20),
      g: () => current.move(-1e9), G: () => current.move(1e9), Home: () => current.move(-1e9), End: () => current.move(1e9),
      f: () => current.toggle("failed"), a: () => current.toggle("all"), t: () => current.time.zoom(0, current.time.end),
      "/": () => { current.search.focus(); current.search.select(); },
      Enter: () => {
        if (typing) { current.list.focus(); if (current.at < 0) current.move(1); return; }
        if (current.at < 0) current.move(1);
        current.split.classList.add("open");
        current.details.focus();
      },
      Escape: () => { if (typing) { event.target.blur(); current.list.focus(); } else current.close(); },
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }
  start();
})();
