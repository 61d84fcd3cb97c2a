"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const AGAIN = 1000, LATER = 5000; // milliseconds until the server is asked again
  const SETTLED = 300; // milliseconds after a key that came too early, in which no key answers
  let asked = null; // the question, as the server sent it
  let words = []; // of the caption as it stands, while it is the model's but for words that were replaced
  let place = null; // of the word that was reached last
  let busy = true;
  let edits = false; // whether E was pressed before the question was there
  let early = 0; // when a key was pressed last that came too early

  const draw = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

  // A browser is a person: it keeps its number, its token, and an answer that the server has not confirmed.
  function kept(name, make = () => "") {
    if (localStorage.getItem(name) === null) localStorage.setItem(name, make());
    return localStorage.getItem(name);
  }
  if (location.hash.length > 1) {
    localStorage.setItem("token", decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
  }
  addEventListener("hashchange", () => location.reload()); // another token, in the same tab
  const person = kept("person", draw);

  function trouble(text) {
    at("trouble").textContent = text;
    at("trouble").hidden = !text;
  }

  function headers() {
    return kept("token") ? { Authorization: `Bearer ${kept("token")}` } : {};
  }

  const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  // Ask the server again and again until it answers: what it has already, it takes once.
  async function reach(path, options) {
    for (;;) {
      try {
        const response = await fetch(path, options);
        if (response.status < 500 && response.status !== 408 && response.status !== 429) {
          trouble("");
          return response;
        }
        trouble(response.status === 500 ? "The server failed: its log says why. It is asked again." : "The server is busy. It is asked again.");
      } catch {
        trouble("The server does not answer. Nothing is lost: it is asked again until it does.");
      }
      await wait(AGAIN);
    }
  }

  async function send(path, fields) {
    const response = await reach(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ person, ...fields }),
    });
    const told = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (told.of !== undefined) {
      at("progress").value = told.of ? (told.of - told.left) / told.of : 1;
      at("count").textContent = `${told.left.toLocaleString("en")} of ${told.of.toLocaleString("en")} left`;
    }
    return { status: response.status, told };
  }

  function lock(on) {
    busy = on;
    for (const button of document.querySelectorAll(".button")) button.disabled = on;
    if (!on && edits) at("caption").focus();
    if (!on) edits = false;
  }

  function standing() {
    at("accept_text").textContent = asked && at("caption").value !== asked.shown ? "Send this" : "Accept";
  }

  function set(caption) {
    at("caption").value = caption;
    standing();
  }

  const parts = () => [...at("words").children];

  function mark() {
    parts().forEach((part, number) => part.setAttribute("aria-current", String(number === place)));
  }

  // Show the words as they stand, which are buttons for as long as the caption is made of them.
  function show() {
    const maps = asked.attention.map((map) => map.flat());
    const [height, width] = maps.length ? [asked.attention[0].length, asked.attention[0][0].length] : [0, 0];
    Heat.words(at("words"), at("frame"), at("heat"), words, maps, height, width, [], reached);
    mark();
  }

  function buttons(line, texts, press, wrap = (button) => button) {
    line.replaceChildren(...texts.map((choice) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = choice;
      button.addEventListener("click", () => press(choice));
      return wrap(button);
    }));
  }

  function reached(number) {
    place = number;
    mark();
    const likely = (asked.likely[number] || []).filter((word) => word !== words[number]);
    at("instead").hidden = !likely.length;
    at("instead_title").textContent = `Instead of \u201c${words[number]}\u201d`;
    buttons(at("likely"), likely, (word) => replace(number, word));
  }

  function replace(number, word) {
    words[number] = word;
    set(words.join(" "));
    show();
    parts()[number].focus();
    at("state").textContent = `now: ${words.join(" ")}`;
  }

  // The caption is made of the model's words no more.
  function free() {
    words = [];
    place = null;
    at("instead").hidden = true;
    at("words").replaceChildren();
    at("frame").classList.remove("on");
  }

  function restore() {
    words = [...asked.words];
    place = null;
    at("instead").hidden = true;
    show();
    set(asked.shown);
  }

  function choose(caption) {
    free();
    set(caption);
    at("state").textContent = `now: ${caption}`;
  }

  async function photograph(view) {
    const image = at("photograph");
    URL.revokeObjectURL(image.src);
    image.removeAttribute("src");
    const response = await reach(`/photograph/${view.picture}`, { headers: headers() });
    if (!response.ok) return false;
    image.src = URL.createObjectURL(await response.blob());
    await image.decode().catch(() => {});
    // The map covers what the model was shown: the whole photograph, or the square in its middle.
    const ratio = view.fit === "crop" ? 1 : image.naturalWidth / image.naturalHeight || 1;
    at("frame").style.setProperty("--ratio", String(ratio));
    return true;
  }

  async function ask(view, left, caption = null) {
    asked = view;
    at("desk").hidden = !view;
    for (const id of ["accept", "edit", "reject", "skip", "none"]) at(id).hidden = !view;
    at("finished").hidden = Boolean(view);
    if (!view) {
      at("state").textContent = "\u00a0"; // of the last photograph
      at("finished").textContent = left
        ? "Others have the last ones. What they leave comes here, ten minutes after they were heard of last."
        : "All looked at: thank you.";
      if (left) setTimeout(() => { if (!asked && !busy) next(); }, LATER);
      return lock(false);
    }
    if (!(await photograph(view))) {
      trouble(`${view.name} cannot be shown.`);
      await wait(AGAIN);
      return next();
    }
    at("name").textContent = view.name;
    restore();
    if (caption !== null && caption !== view.shown) choose(caption);
    at("others").hidden = !view.alternatives.length;
    buttons(at("list"), view.alternatives, choose, (button) => {
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    document.activeElement.blur();
    scrollTo(0, 0);
    at("state").textContent = view.shown ? `The caption: ${view.shown}` : "The model found no word for it.";
    lock(false);
  }

  async function next() {
    lock(true);
    const { status, told } = await send("/next", {});
    if (status === 200) await ask(told.question, told.left);
    else trouble(told.error);
  }

  // An answer is kept in the browser until the server has it, or says that it does not take it.
  async function answer(verdict) {
    if (busy || !asked) return;
    const accepts = verdict === "accepted";
    const given = at("caption").value === asked.shown ? asked.shown : at("caption").value.trim();
    if (accepts && !given) {
      at("state").textContent = "There is no caption: write one, or reject.";
      return;
    }
    const fields = {
      number: draw(),
      picture: asked.picture,
      shown: asked.shown,
      verdict: accepts && given !== asked.shown ? "edited" : verdict,
      given: accepts ? given : null,
      who: at("who").value.trim() || null,
    };
    lock(true);
    localStorage.setItem("answer", JSON.stringify(fields));
    await deliver(fields);
  }

  async function deliver(fields) {
    const { status, told } = await send("/answer", fields);
    if (![200, 400, 409].includes(status)) return trouble(told.error);
    localStorage.removeItem("answer");
    await next();
    if (status !== 200) trouble(`Not taken: ${told.error}.${fields.given ? ` It was: ${fields.given}` : ""}`);
  }

  async function undo() {
    if (busy) return;
    lock(true);
    const { status, told } = await send("/undo", { number: draw() });
    if (status === 200) return ask(told.question, told.left, told.answer.given);
    lock(false);
    at("state").textContent = told.error;
  }

  // Another likely word in place of the one that was reached: the next likelier (-1) or less likely (1).
  function turn(step) {
    if (place === null || !words.length || !asked.likely[place]) return;
    const likely = asked.likely[place];
    replace(place, likely[(likely.indexOf(words[place]) + step + likely.length) % likely.length]);
  }

  function go(step) {
    const all = parts();
    if (all.length) all[place === null ? (step > 0 ? 0 : all.length - 1) : (place + step + all.length) % all.length].focus();
  }

  const LETTERS = {
    a: () => answer("accepted"),
    e: () => at("caption").focus(),
    r: () => answer("rejected"),
    s: () => answer("skipped"),
    n: () => answer("no photograph"),
    u: undo,
  };
  const ARROWS = { ArrowLeft: () => go(-1), ArrowRight: () => go(1), ArrowUp: () => turn(-1), ArrowDown: () => turn(1) };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.keyCode === 229) return;
    const writes = event.target.matches("textarea, #who");
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const enters = key === "Enter" && (event.target === at("caption") || !event.target.matches(".button, .choices button, .others button, input, summary"));
    const letters = !writes && at("letters").checked && (key in LETTERS || /^[1-9]$/.test(key));
    if (event.target === at("caption") && key === "Escape" && asked) {
      restore();
      event.target.blur();
    } else if ((enters || letters) && event.repeat) {
      event.preventDefault(); // a key that is held down answers once
    } else if ((enters || letters) && (busy || Date.now() - early < SETTLED)) {
      event.preventDefault(); // meant for a question that was not there yet
      early = Date.now();
      edits = edits || key === "e";
      if (!busy && edits) lock(false);
    } else if (enters) {
      event.preventDefault();
      answer("accepted");
    } else if (letters) {
      event.preventDefault();
      if (key in LETTERS) LETTERS[key]();
      else if (asked && asked.alternatives[key - 1]) choose(asked.alternatives[key - 1]);
    } else if (!writes && !busy && asked && key in ARROWS) {
      event.preventDefault();
      ARROWS[key]();
    }
  });
  at("caption").addEventListener("input", () => {
    if (words.length) free();
    standing();
  });
  for (const [id, verdict] of [["accept", "accepted"], ["reject", "rejected"], ["skip", "skipped"], ["none", "no photograph"]]) {
    at(id).addEventListener("click", () => answer(verdict));
  }
  at("edit").addEventListener("click", () => at("caption").focus());
  at("undo").addEventListener("click", undo);
  at("who").value = localStorage.getItem("who") || "";
  at("who").addEventListener("change", () => localStorage.setItem("who", at("who").value.trim()));
  at("letters").checked = localStorage.getItem("letters") !== "off";
  at("letters").addEventListener("change", () => localStorage.setItem("letters", at("letters").checked ? "on" : "off"));

  lock(true);
  const waiting = localStorage.getItem("answer");
  if (waiting) deliver(JSON.parse(waiting));
  else next();
})();
