// Fetches the page again every five seconds and puts its newer part in, while somebody looks at it.
// The page is complete without this.
"use strict";
const refresh = async () => {
  if (document.hidden || document.activeElement?.tagName === "INPUT") return;
  try {
    const response = await fetch(location.href, {headers: {Accept: "text/html"}});
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of ["header", "main"]) {
      const [old, now] = [document.querySelector(part), page.querySelector(part)];
      const at = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      const focused = document.activeElement?.getAttribute("aria-labelledby");
      old.replaceWith(now);
      [...now.querySelectorAll(".scroll")].forEach((one, i) => { one.scrollLeft = at[i] ?? 0; });
      if (focused) now.querySelector(`[role=region][aria-labelledby="${focused}"]`)?.focus();
    }
  } catch {
    // The node is away. The time of what is shown says how old it is.
  }
};
setInterval(refresh, 5000);
