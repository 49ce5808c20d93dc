"use strict";
(function () {
  // Only what has changed is replaced: the place on the page, a selection elsewhere and the focus stay.
  const place = document.getElementById("live");
  const state = document.getElementById("state");
  let version = document.body.dataset.version;
  function update(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html").body;
    const ids = (parent) => Array.from(parent.children, (child) => child.id).join(" ");
    if (ids(fresh) !== ids(place)) {
      place.replaceChildren(...fresh.childNodes);
      return;
    }
    for (const child of Array.from(fresh.children)) {
      const old = document.getElementById(child.id);
      if (!old.isEqualNode(child)) old.replaceWith(child);
    }
  }
  async function poll() {
    if (!document.hidden) {
      try {
        const answer = await fetch("/live?" + version);
        if (answer.status === 200) {
          update(await answer.text());
          version = answer.headers.get("X-Version");
        }
        state.textContent = "live";
        state.classList.remove("alarm");
      } catch {
        state.textContent = "no longer served";
        state.classList.add("alarm");
      }
    }
    setTimeout(poll, 1000 * Number(document.body.dataset.refresh));
  }
  poll();
})();
