/* Hover boxes, legends, sorting, copying, light and dark. The page is whole without it. */
(() => {
  const root = document.documentElement, make = (name, text, kind) => {
    const made = document.createElement(name); if (text != null) made.textContent = text; if (kind) made.className = kind; return made; };
  root.classList.add("js");
  const stored = (() => { try { return localStorage.getItem("moebox-theme"); } catch { return null; } })();
  if (stored) root.dataset.theme = stored;

  document.querySelectorAll(".theme").forEach(button => button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("moebox-theme", root.dataset.theme); } catch { /* a file opened from disk may have no storage */ }
  }));

  const hovering = figure => {
    const svg = figure.querySelector("svg[data-chart]"); if (!svg) return;
    const chart = JSON.parse(svg.dataset.chart); if (!chart.stops.length) return;
    svg.querySelectorAll(".series title").forEach(one => one.remove()); // the box below says it better
    const cursor = svg.querySelector(".cursor"), width = svg.viewBox.baseVal.width;
    let tip = null, place = -1;
    const hide = () => { tip?.remove(); tip = null; cursor?.setAttribute("visibility", "hidden"); };
    const show = index => {
      place = Math.max(0, Math.min(chart.stops.length - 1, index));
      const [x, heading, values] = chart.stops[place];
      if (!tip) { tip = make("div", null, "tip"); tip.setAttribute("role", "status"); figure.append(tip); }
      tip.replaceChildren(make("b", `${heading} ${chart.x}`));
      values.forEach((value, series) => {
        const off = svg.querySelector(`[data-series="${series}"]`)?.classList.contains("off");
        if (value == null || off) return;
        const row = make("div"), swatch = make("span", null, "swatch"), [name, colour] = chart.series[series];
        swatch.style.setProperty("--c", `var(--s${colour})`);
        row.append(swatch, make("span", name), make("span", value)); tip.append(row);
      });
      cursor?.setAttribute("x1", x); cursor?.setAttribute("x2", x); cursor?.setAttribute("visibility", "visible");
      const box = svg.getBoundingClientRect(), home = figure.getBoundingClientRect(), left = box.left - home.left + x * box.width / width;
      tip.style.left = `${Math.max(0, left > home.width / 2 ? left - tip.offsetWidth - 12 : left + 12)}px`;
      tip.style.top = `${box.top - home.top + 24}px`;
    };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * width / box.width;
      let best = 0; chart.stops.forEach((stop, index) => { if (Math.abs(stop[0] - x) < Math.abs(chart.stops[best][0] - x)) best = index; });
      show(best);
    });
    svg.addEventListener("pointerleave", hide); svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      if (event.key === "ArrowRight") show(place + 1); else if (event.key === "ArrowLeft") show(place < 0 ? 0 : place - 1);
      else if (event.key === "Escape") hide(); else return; event.preventDefault();
    });
  };

  const toggling = figure => figure.querySelectorAll(".legend button").forEach(button => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(on));
    const name = button.dataset.part ? `[data-part="${CSS.escape(button.dataset.part)}"]` : `[data-series="${button.dataset.series}"]`;
    figure.querySelectorAll(name).forEach(one => one.tagName !== "BUTTON" && one.classList.toggle("off", !on));
  }));

  const value = cell => { const raw = cell.dataset.value, number = Number(raw); return raw === undefined || raw === "" ? null : Number.isNaN(number) ? raw : number; };
  const sorting = table => table.querySelectorAll("thead th button").forEach(button => button.addEventListener("click", () => {
    const head = button.closest("th"), down = head.getAttribute("aria-sort") === "ascending", body = table.tBodies[0], place = head.cellIndex;
    table.querySelectorAll("th[aria-sort]").forEach(one => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => a === null ? 1 : b === null ? -1 : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    [...body.rows].map(row => [value(row.cells[place]), row]).sort(([a], [b]) => a === null || b === null ? order(a, b) : down ? order(b, a) : order(a, b))
      .forEach(([, row]) => body.append(row));
  }));

  const csv = table => [...table.rows].map(row => [...row.cells].map(cell => {
    const raw = cell.dataset.value ?? cell.textContent.trim().replace(/\s+/g, " ");
    return /[",\n]/.test(raw) ? `"${raw.replaceAll('"', '""')}"` : raw; }).join(",")).join("\n");
  const put = async text => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed from a file: the old way */ }
    const area = make("textarea", text); document.body.append(area); area.select();
    const done = document.execCommand("copy"); area.remove(); return done; };
  const copying = button => button.addEventListener("click", async event => {
    event.preventDefault();
    const block = button.closest(".table,details"), table = block.querySelector("table"), text = table ? csv(table) : block.querySelector("textarea")?.value ?? block.querySelector("pre").textContent;
    const name = button.textContent; button.textContent = await put(text) ? "copied" : "could not copy"; button.dataset.copied = text;
    setTimeout(() => { button.textContent = name; }, 1600);
  });

  const enliven = place => {
    place.querySelectorAll("figure").forEach(figure => { hovering(figure); toggling(figure); });
    place.querySelectorAll("table.sorts").forEach(sorting);
    place.querySelectorAll(".copy").forEach(copying);
  };
  enliven(document);
  // what scrolls sideways can be reached and scrolled by keyboard; what does not is no stop on the way
  const reachable = () => document.querySelectorAll(".scroll, .pan").forEach(region => {
    if (region.scrollWidth <= region.clientWidth + 1) { if (region.dataset.reached) { region.removeAttribute("tabindex"); region.removeAttribute("role"); } return; }
    region.tabIndex = 0; region.dataset.reached = "1"; region.setAttribute("role", "region");
    if (!region.hasAttribute("aria-label")) region.setAttribute("aria-label", region.closest(".table, figure")?.querySelector("h3, summary")?.textContent || "table");
    const label = region.getAttribute("aria-label"), same = [...document.querySelectorAll("[role=region]")].filter(one => one !== region && one.getAttribute("aria-label") === label);
    if (same.length) region.setAttribute("aria-label", `${label} ${same.length + 1}`);
  });
  reachable(); addEventListener("resize", reachable); addEventListener("toggle", reachable, true);
  addEventListener("moebox:shown", event => { enliven(event.target); reachable(); });
  addEventListener("beforeprint", () => document.querySelectorAll("details:not(.heavy)").forEach(one => { one.open = true; }));
  const links = new Map([...document.querySelectorAll("nav.toc a")].map(link => [link.hash.slice(1), link]));
  if (links.size && "IntersectionObserver" in window) {
    const watch = new IntersectionObserver(entries => entries.forEach(entry => {
      if (entry.isIntersecting) { links.forEach(link => link.classList.remove("here")); links.get(entry.target.id)?.classList.add("here"); } }),
      { rootMargin: "-15% 0px -75% 0px" });
    document.querySelectorAll("main section[id]").forEach(one => watch.observe(one));
  }
})();
