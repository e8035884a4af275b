// Watcher thread: reads the control channel, so interrupts arrive while user code keeps the main thread busy.
//
// A signal alone is not sufficient: Node delivers it to JavaScript from its event loop, which a busy loop never
// reaches, and vm's breakOnSigint covers only the part of an eval before its first await and leaves moments in which
// SIGINT has no handler and kills the process. The inspector can: a session of another thread can call a function
// in the main thread in the middle of its JavaScript, like a signal handler. That function is `interrupt`
// in runner.mjs; it knows exactly what runs, so no interrupt is early, late, or for another eval.

import { readFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import { Socket } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

const FRAME_BYTES = 8 << 20;
const [NO, LATER, SOON] = [0, 1, 2]; // whether to repeat the interrupt
const AGAIN_MS = 100; // delay before interrupting an unfinished eval again
const SOON_MS = 1;
const LAST_MS = 1000; // time left to a busy main thread when the worker is gone

const CALL = 'function (number) { return this(number); }';

const session = new Session();
session.connectToMainThread();
parentPort.on('message', () => {}); // keeps this thread alive while the inspector session has a request
let interrupter;
let wanted = 0; // the eval to end
let children = new Set(); // child processes when the running eval began
let parts = [];
let have = 0;
let need = 4;

session.post('Runtime.evaluate', { expression: `globalThis[${JSON.stringify(workerData.key)}]` }, (error, answer) => {
  if (error) throw error;
  interrupter = answer.result.objectId;
  parentPort.postMessage({ op: 'up' });
  const socket = new Socket({ fd: workerData.fd, readable: true, writable: false });
  socket.on('data', receive);
  socket.on('error', () => end('closed'));
  socket.on('end', () => end('closed'));
});

function receive(chunk) {
  parts.push(chunk);
  have += chunk.length;
  while (have >= need) {
    const data = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    const size = data.readUInt32BE(0);
    if (size > FRAME_BYTES) return end('breach');
    need = 4 + size;
    parts = [data];
    if (have < need) return;
    const message = parsed(data.toString('utf8', 4, need));
    if (message === null) return end('breach');
    onMessage(message);
    parts = [data.subarray(need)];
    have -= need;
    need = 4;
  }
}

function parsed(text) {
  try {
    const message = JSON.parse(text);
    return typeof message?.op === 'string' && Number.isInteger(message.n) ? message : null;
  } catch {
    return null;
  }
}

function onMessage(message) {
  if (message.op === 'interrupt') {
    wanted = message.n;
    interrupt(message.n);
    return;
  }
  if (message.op === 'eval') children = new Set(childrenOf(process.pid));
  parentPort.postMessage(message);
}

/** Interrupt an eval repeatedly until the main thread reports that it is over. */
function interrupt(number) {
  const blocked = setTimeout(kick, AGAIN_MS);
  const call = { objectId: interrupter, functionDeclaration: CALL, arguments: [{ value: number }], returnByValue: true };
  session.post('Runtime.callFunctionOn', call, (error, answer) => {
    clearTimeout(blocked);
    // An error: the interrupt stopped its own call, so check again whether it reached its eval.
    const again = error ? LATER : answer.result.value;
    if (again !== NO) setTimeout(() => wanted === number && interrupt(number), again === SOON ? SOON_MS : AGAIN_MS);
  });
}

/** Handle a main thread blocked in execSync() or similar. Like Ctrl-C in a terminal, end
 * what it waits for: every process started since the eval began. */
function kick() {
  const todo = childrenOf(process.pid).filter((pid) => !children.has(pid));
  while (todo.length > 0) {
    const pid = todo.pop();
    todo.push(...childrenOf(pid));
    try {
      process.kill(pid, 'SIGINT');
    } catch {
      // already ended
    }
  }
}

function childrenOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** End the session: the main thread exits the process, or, if it is too busy, this thread does. */
function end(why) {
  wanted = 0;
  parentPort.postMessage({ op: why });
  setTimeout(() => process.kill(process.pid, 'SIGKILL'), LAST_MS);
}
