# Writes the access log of docs/simulate.md: people who look at some pages, search and log in, an
# office behind one address, a scraper that is too fast, and somebody who guesses passwords. It is
# the same with every awk.
function rnd(n) { seed = seed * 16807 % 2147483647; return int(seed / 2147483647 * n) }
BEGIN {
  seed = 5; at = 1777896000
  for (i = 0; i < 20000; i++) {
    at += rnd(180000) / 1000000
    ip = "198.51." rnd(4) "." rnd(250); status = 200; uri = "/articles/" rnd(500)
    who = rnd(100)
    if (who < 25) { ip = "203.0.113.99"; status = rnd(4) ? 404 : 200; uri = "/products/" i }
    else if (who < 33) ip = "192.0.2.7"
    else if (who < 43) uri = "/search?q=" rnd(1000)
    else if (who < 45) { uri = "/login"; status = rnd(4) ? 200 : 401 }
    else if (who == 45) { ip = "203.0.113.66"; uri = "/login"; status = 401 }
    printf "{\"ts\":%.6f,\"logger\":\"http.log.access\",\"request\":{\"remote_ip\":\"%s\",\"client_ip\":\"%s\",\"method\":\"GET\",\"host\":\"example.com\",\"uri\":\"%s\"},\"duration\":0.0012,\"status\":%d}\n", at, ip, ip, uri, status
  }
}
