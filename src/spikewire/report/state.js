"use strict";
// What a reader has chosen survives a reload, as of `spikewire report --watch`: theme, filter, tab,
// axis, run. It is kept in this tab only.
const place = "spikewire-report:" + location.pathname;
const state = { theme: "", filter: "", tab: "", run: "", choices: {}, sorts: {} };
try {
  Object.assign(state, JSON.parse(sessionStorage.getItem(place)) ?? {});
} catch {
  // a browser without storage starts from the defaults
}
if (state.theme) document.documentElement.dataset.theme = state.theme;

function remember(changes) {
  Object.assign(state, changes);
  try {
    sessionStorage.setItem(place, JSON.stringify(state));
  } catch {
    // not kept
  }
}
