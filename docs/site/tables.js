// The theme puts tables into boxes that scroll sideways on narrow screens: the keyboard has to reach these too.

function reach() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (box.scrollWidth <= box.clientWidth) box.removeAttribute("tabindex");
    else Object.assign(box, { tabIndex: 0, role: "group", ariaLabel: "Table" });
  }
}

new MutationObserver(reach).observe(document.body, { childList: true, subtree: true }); // the theme's script comes later
addEventListener("resize", reach);
reach();
