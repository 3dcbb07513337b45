// Before anything is shown: what needs scripts is shown instead of the plain tables, unless the scripts do not start.
document.documentElement.dataset.scripts = "yes";
addEventListener("DOMContentLoaded", () => {
  if (!document.documentElement.dataset.started) delete document.documentElement.dataset.scripts;
});
