// Drives the installed Firefox, headless, over WebDriver BiDi.
import { firefox } from "playwright-core";

/**
 * Firefox without network access of its own. `FIREFOX` names the program. Debian's is the extended support release, for which
 * Playwright 1.65 is too new: it emulates media with a command that Firefox 153 does not have.
 */
export function launch(preferences = {}) {
  return firefox.launch({
    channel: "moz-firefox",
    executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
    firefoxUserPrefs: {
      "network.captive-portal-service.enabled": false,
      "network.connectivity-service.enabled": false,
      ...preferences,
    },
  });
}
