"use strict";
// What every page of ours has: facts, a state that the address holds, a search, keys.
const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
const facts = JSON.parse(one("#facts").textContent);
document.documentElement.classList.add("js");

// An element; strings among its children are text, whatever stands in them.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The address says what is searched for and selected, so that a link shows the same. Typing makes no step to go back to.
const state = {};
let show = () => {};
function read() {
  for (const name of Object.keys(state)) delete state[name];
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (value) state[name] = value;
}
function address(changes) {
  const kept = Object.entries({...state, ...changes}).filter(([, value]) => value);
  return "#" + kept.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}
function set(changes, step = false) {
  history[step ? "pushState" : "replaceState"](null, "", address(changes));
  read();
  show();
}
window.addEventListener("popstate", () => { read(); show(); });

// A word of a search with the other ways to write it: a number in decimal, or with leading zeros.
function words() {
  return (state.q || "").toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    if (/^0x0+[0-9a-f]/.test(word)) return [word, word.replace(/^0x0+/, "0x")];
    return /^\d{4,}$/.test(word) ? [word, "0x" + BigInt(word).toString(16)] : [word];
  });
}

const filter = one("#filter");
filter.addEventListener("input", () => set({q: filter.value.trim()}));
filter.form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (event.key === "Escape" && event.target === filter && filter.value) {
    event.preventDefault();
    filter.value = "";
    set({q: ""});
  }
});

// A link within the page: to a place, which leaves the state alone, or to a state, which is added to the one there is.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const wanted = link.hash.slice(1);
  if (wanted.includes("=")) return set(Object.fromEntries(new URLSearchParams(wanted)), true);
  const place = document.getElementById(wanted);
  place.scrollIntoView();
  place.focus({preventScroll: true});
});
