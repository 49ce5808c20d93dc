"use strict";
(function () {
  // Only what has changed is replaced: the place on the page, a selection elsewhere and the focus stay.
  const place = document.getElementById("live");
  const state = document.getElementById("state");
  let version = document.body.dataset.version;
  const page = (version) => version.split(".")[0];
  function say(text, alarm) {
    if (state.textContent !== text) state.textContent = text; // what is written again is read out again
    state.classList.toggle("alarm", alarm);
  }
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
          const now = answer.headers.get("X-Version");
          // Another store under this address, or a method whose colour this page lacks.
          if (page(now) !== page(version)) {
            location.reload();
            return;
          }
          update(await answer.text());
          version = now;
        }
        say("live", false);
      } catch {
        say("no longer served", true);
      }
    }
    setTimeout(poll, 1000 * Number(document.body.dataset.refresh));
  }
  poll();
})();
