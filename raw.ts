import { createServer } from "node:net";
createServer((s) => {
  s.on("error", () => {});
  s.once("data", (d) => {
    const u = d.toString().split(" ")[1]!;
    s.end(
      u.includes("099")
        ? "HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok"
        : u.includes("600")
          ? "HTTP/1.1 600 Odd\r\nContent-Length: 2\r\n\r\nok"
          : "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
  });
}).listen(39700, "127.0.0.1");
