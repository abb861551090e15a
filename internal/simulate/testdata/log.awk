# Writes an access log of n requests by browsers, of whom some send many: in Caddy's JSON, or with
# -v combined=1 in the Combined Log Format. The figures of docs/simulate.md are of these.
BEGIN {
  srand(7)
  agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
  head = "{\"level\":\"info\",\"ts\":%.7f,\"logger\":\"http.log.access.log0\",\"msg\":\"handled request\"," \
    "\"request\":{\"remote_ip\":\"%s\",\"remote_port\":\"%d\",\"client_ip\":\"%s\",\"proto\":\"HTTP/2.0\"," \
    "\"method\":\"GET\",\"host\":\"example.com\",\"uri\":\"%s\",\"headers\":{"
  headers = "\"Accept\":[\"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\"]," \
    "\"Accept-Encoding\":[\"gzip, deflate, br, zstd\"],\"Accept-Language\":[\"en-US,en;q=0.5\"]," \
    "\"Cookie\":[\"REDACTED\"],\"Referer\":[\"https://example.com/\"],\"User-Agent\":[\"" agent "\"]"
  tail = "},\"tls\":{\"resumed\":true,\"version\":772,\"cipher_suite\":4865,\"proto\":\"h2\",\"server_name\":\"example.com\"}}," \
    "\"bytes_read\":0,\"user_id\":\"\",\"duration\":%.9f,\"size\":%d,\"status\":%d,\"resp_headers\":{\"Server\":[\"Caddy\"]," \
    "\"Content-Type\":[\"text/html; charset=utf-8\"],\"Alt-Svc\":[\"h3=\\\":443\\\"; ma=2592000\"]}}\n"
  for (i = 0; i < n; i++) {
    at += rand() / 250
    client = clients ? i % clients : int(50000 * rand() * rand() * rand())
    ip = 10 + int(client / 16777216) "." int(client / 65536) % 256 "." int(client / 256) % 256 "." client % 256
    uri = "/articles/" int(rand() * 5000) "?page=" i % 7
    status = rand() < .9 ? 200 : 404
    if (combined)
      printf "%s - - [%s] \"GET %s HTTP/2.0\" %d %d \"https://example.com/\" \"%s\"\n", ip, strftime("%d/%b/%Y:%H:%M:%S +0000", 1700000000 + int(at), 1), uri, status, 5321 + i % 999, agent
    else {
      printf head, 1700000000 + at, ip, 1024 + i % 60000, ip, uri
      printf "%s", headers
      printf tail, rand() / 100, 5321 + i % 999, status
    }
  }
}
