"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  let model = { attends: false, fit: "squash", beam: 3 };
  let given = null;
  let asked = 0; // an answer to an older question is not shown

  function state(text, wrong = false) {
    at("state").textContent = text;
    at("state").className = wrong ? "error" : "quiet";
  }

  function clear() {
    at("words").replaceChildren();
    at("list").replaceChildren();
    at("others").hidden = at("hint").hidden = at("sure").hidden = true;
    at("frame").classList.remove("on");
  }

  function show(row) {
    clear();
    if (row.error) return state(`This picture ${row.error}.`, true);
    state(row.confidence === null || row.confidence === undefined ? `log-probability ${row.log_probability.toFixed(2)}`
      : `${(100 * row.confidence).toFixed(0)} % confident that this is acceptable; log-probability ${row.log_probability.toFixed(2)}`);
    const maps = row.attention.map((map) => map.flat());
    const [height, width] = row.attention.length ? [row.attention[0].length, row.attention[0][0].length] : [0, 0];
    const tokens = row.tokens.map((token) => token.replace("</w>", ""));
    Heat.words(at("words"), at("frame"), at("heat"), tokens, maps, height, width, row.token_probabilities || []);
    at("hint").hidden = !maps.length;
    at("sure").hidden = !(row.token_probabilities || []).length;
    at("others").hidden = !row.alternatives.length;
    at("list").replaceChildren(...row.alternatives.map((other) => {
      const item = document.createElement("li");
      item.textContent = other.caption;
      const score = document.createElement("span");
      score.className = "quiet";
      score.textContent = `  ${other.log_probability.toFixed(2)}`;
      item.append(score);
      return item;
    }));
  }

  const described = fetch("/model").then((response) => response.json()).then((found) => {
    model = found;
    at("model").textContent = `${found.model}, version ${found.version}`;
    at("beam").value = found.beam;
    at("best").value = Math.min(3, found.beam);
    setting("beam");
    setting("best");
  }).catch(() => state("The server does not answer.", true));

  async function ask() {
    if (!given) return;
    const number = ++asked;
    await described; // a picture may be dropped before the model is described, and beam and maps depend on it
    if (number !== asked) return;
    const query = new URLSearchParams({ beam_size: at("beam").value, n_best: at("best").value });
    if (model.attends) query.set("return_attention", "true");
    at("answer").setAttribute("aria-busy", "true");
    state("Looking\u2026");
    try {
      const kind = given.type.startsWith("image/") ? given.type : "application/octet-stream";
      const response = await fetch(`/caption?${query}`, { method: "POST", body: given, headers: { "Content-Type": kind } });
      const row = await response.json();
      if (number !== asked) return;
      if (response.ok) show(row);
      else { clear(); state(row.error, true); }
    } catch {
      if (number === asked) { clear(); state("The server does not answer.", true); }
    } finally {
      if (number === asked) at("answer").setAttribute("aria-busy", "false");
    }
  }

  function take(file) {
    if (!file) return;
    given = file;
    clear();
    const image = at("photograph");
    URL.revokeObjectURL(image.src);
    image.onload = () => {
      // The map covers what the model was shown: the whole photograph, or the square in its middle.
      at("frame").style.aspectRatio = model.fit === "crop" ? "1" : `${image.naturalWidth} / ${image.naturalHeight}`;
      at("frame").hidden = false;
    };
    image.onerror = () => { at("frame").hidden = true; };
    image.src = URL.createObjectURL(file);
    at("drop").classList.add("full");
    at("again").hidden = false;
    ask();
  }

  function setting(name) {
    at(`${name}_value`).value = at(name).value;
  }

  at("file").addEventListener("change", () => take(at("file").files[0]));
  at("again").addEventListener("click", () => at("file").click());
  at("settings").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["beam", "best"]) at(name).addEventListener("input", () => setting(name));
  at("beam").addEventListener("change", () => {
    if (+at("best").value > +at("beam").value) at("best").value = at("beam").value;
    setting("best");
    ask();
  });
  at("best").addEventListener("change", () => {
    if (+at("best").value > +at("beam").value) at("beam").value = at("best").value;
    setting("beam");
    ask();
  });
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.remove("over"); });
  }
  document.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
  document.addEventListener("paste", (event) => take([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
})();
