// Elements shared by the report and the comparison.
"use strict";

const Page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const signed = (value) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(2);

  function element(tag, text, ...children) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  }

  function row(cells, tag = "td") {
    return element("tr", "", ...cells.map((cell) => element(tag, cell)));
  }

  return { data, at, signed, element, row };
})();
