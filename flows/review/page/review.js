"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const WAIT = 1000; // milliseconds between two attempts to reach the server
  let asked = null; // the question, as the server sent it
  let words = []; // of the caption as it stands, while it is the model's but for words that were replaced
  let place = null; // of the word that was reached last
  let busy = true;

  const draw = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

  // A browser's tab is a person: it keeps its number, its token, and an answer that the server has not confirmed.
  function kept(name, make = () => "") {
    if (sessionStorage.getItem(name) === null) sessionStorage.setItem(name, make());
    return sessionStorage.getItem(name);
  }
  if (location.hash.length > 1) {
    sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
  }
  const person = kept("person", draw);

  function trouble(text) {
    at("trouble").textContent = text;
    at("trouble").hidden = !text;
  }

  function headers() {
    return kept("token") ? { Authorization: `Bearer ${kept("token")}` } : {};
  }

  // Ask the server again and again until it answers: an answer that it has already is taken once.
  async function reach(path, options) {
    for (;;) {
      try {
        const response = await fetch(path, options);
        if (response.status < 500) {
          trouble("");
          return response;
        }
        trouble("The server failed: its log says why. It is asked again.");
      } catch {
        trouble("The server does not answer. Nothing is lost: it is asked again until it does.");
      }
      await new Promise((resolve) => setTimeout(resolve, WAIT));
    }
  }

  async function send(path, fields) {
    const response = await reach(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ person, ...fields }),
    });
    const told = await response.json();
    if (told.of) {
      at("progress").value = (told.of - told.left) / told.of;
      at("count").textContent = `${told.left.toLocaleString("en")} of ${told.of.toLocaleString("en")} left`;
    }
    return { status: response.status, told };
  }

  function refused({ status, told }) {
    if (status < 400) return false;
    trouble(told.error);
    return true;
  }

  function lock(on) {
    busy = on;
    for (const button of document.querySelectorAll(".button")) button.disabled = on;
  }

  const text = () => at("caption").value.trim().split(/\s+/).join(" ");

  function standing() {
    at("accept_text").textContent = asked && text() !== asked.shown ? "Send this" : "Accept";
  }

  function set(caption) {
    at("caption").value = caption;
    standing();
  }

  // Show the words as they stand, which are buttons for as long as the caption is made of them.
  function show() {
    const maps = asked.attention.map((map) => map.flat());
    const [height, width] = maps.length ? [asked.attention[0].length, asked.attention[0][0].length] : [0, 0];
    Heat.words(at("words"), at("frame"), at("heat"), words, maps, height, width, [], reached);
    at("words").querySelectorAll("button").forEach((part, number) => part.setAttribute("aria-current", String(number === place)));
  }

  function buttons(line, texts, press, wrap = (button) => button) {
    line.replaceChildren(...texts.map((choice, number) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = choice;
      button.addEventListener("click", () => press(choice, number));
      return wrap(button);
    }));
  }

  function reached(number) {
    place = number;
    at("words").querySelectorAll("button").forEach((part, other) => part.setAttribute("aria-current", String(other === place)));
    const likely = (asked.likely[number] || []).filter((word) => word !== words[number]);
    at("instead").hidden = !likely.length;
    at("instead_title").textContent = `Instead of \u201c${words[number]}\u201d`;
    buttons(at("likely"), likely, (word) => replace(number, word));
  }

  function replace(number, word) {
    words[number] = word;
    set(words.join(" "));
    show();
    at("words").children[number].focus();
    at("state").textContent = `now: ${words.join(" ")}`;
  }

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

  async function ask(look, caption = null) {
    asked = look;
    at("desk").hidden = !look;
    at("finished").hidden = Boolean(look);
    if (!look) return lock(false);
    const response = await reach(`/photograph/${look.picture}`, { headers: headers() });
    if (response.ok) {
      const image = at("photograph");
      URL.revokeObjectURL(image.src);
      image.src = URL.createObjectURL(await response.blob());
      await image.decode().catch(() => {});
      // The map covers what the model was shown: the whole photograph, or the square in its middle.
      at("frame").style.aspectRatio = look.fit === "crop" ? "1" : `${image.naturalWidth} / ${image.naturalHeight}`;
    }
    at("name").textContent = look.name;
    restore();
    if (caption !== null && caption !== look.shown) {
      free();
      set(caption);
    }
    at("others").hidden = !look.alternatives.length;
    buttons(at("list"), look.alternatives, choose, (button) => {
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    document.activeElement.blur();
    at("state").textContent = look.shown ? `The caption: ${look.shown}` : "The model found no word for it.";
    lock(false);
  }

  async function next() {
    const answered = await send("/next", {});
    if (!refused(answered)) await ask(answered.told.question);
  }

  function choose(caption) {
    free();
    set(caption);
    at("state").textContent = `now: ${caption}`;
  }

  // An answer is kept in the browser until the server has it.
  async function answer(verdict) {
    if (busy || !asked) return;
    const given = text();
    if (verdict === "accepted" && !given) {
      at("state").textContent = "There is no caption: write one, or reject.";
      return;
    }
    lock(true);
    const judged = verdict === "accepted" && given !== asked.shown ? "edited" : verdict;
    const fields = {
      number: draw(),
      picture: asked.picture,
      shown: asked.shown,
      verdict: judged,
      given: verdict === "accepted" ? given : null,
      who: at("who").value.trim() || null,
    };
    sessionStorage.setItem("answer", JSON.stringify(fields));
    await deliver(fields);
    await next();
  }

  async function deliver(fields) {
    const answered = await send("/answer", fields);
    if (answered.status === 401) return refused(answered);
    sessionStorage.removeItem("answer");
    if (answered.status >= 400) at("state").textContent = `Not taken: ${answered.told.error}`;
  }

  async function undo() {
    if (busy) return;
    lock(true);
    const answered = await send("/undo", {});
    if (answered.status === 409) {
      at("state").textContent = "There is nothing to undo.";
      return lock(false);
    }
    if (!refused(answered)) await ask(answered.told.question, answered.told.said.given);
  }

  // Another likely word in place of the one that was reached: the next likelier (-1) or less likely (1).
  function turn(step) {
    if (place === null || !words.length || !asked.likely[place]) return;
    const likely = asked.likely[place];
    const now = likely.indexOf(words[place]);
    replace(place, likely[(now + step + likely.length) % likely.length]);
  }

  const KEYS = {
    a: () => answer("accepted"),
    e: () => at("caption").focus(),
    r: () => answer("rejected"),
    s: () => answer("skipped"),
    n: () => answer("no photograph"),
    u: undo,
    ArrowLeft: () => go(-1),
    ArrowRight: () => go(1),
    ArrowUp: () => turn(-1),
    ArrowDown: () => turn(1),
  };

  function go(step) {
    const parts = at("words").children;
    if (parts.length) parts[place === null ? (step > 0 ? 0 : parts.length - 1) : (place + step + parts.length) % parts.length].focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const writes = event.target.matches("textarea, input");
    if (event.target === at("caption") && event.key === "Escape") {
      restore();
      event.target.blur();
    } else if (event.key === "Enter" && (event.target === at("caption") || !event.target.matches("button, input, summary, a"))) {
      event.preventDefault();
      answer("accepted");
    } else if (writes || busy) {
      return;
    } else if (/^[1-9]$/.test(event.key)) {
      const item = at("list").children[event.key - 1];
      if (asked && item) choose(item.textContent);
    } else {
      const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act) return;
      event.preventDefault();
      act();
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

  (async () => {
    lock(true);
    const waiting = sessionStorage.getItem("answer");
    if (waiting) await deliver(JSON.parse(waiting));
    await next();
  })();
})();
