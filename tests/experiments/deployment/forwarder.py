"""A TCP forwarder on the loopback address, as a process of its own: ``python forwarder.py PORT TARGET_PORT``.

It stands for the proxy in front of the SuperLink (killed and started again) and for the network (stopped with SIGSTOP:
connections stay open, nothing gets through, as on a line that is cut). It sees TLS records only.
"""

import asyncio
import sys
from contextlib import suppress


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
    try:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))


async def main(port: int, target: int) -> None:
    server = await asyncio.start_server(lambda r, w: forward(r, w, target), "127.0.0.1", port)
    print("forwarding", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
