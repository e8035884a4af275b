// process.stdin and reads of descriptor 0: reports to the worker when code waits for input, and ends at once where
// input is not allowed. Unread input stays for the next eval that reads.

import { Buffer } from 'node:buffer';
import fs from 'node:fs';
import { Socket } from 'node:net';
import readline from 'node:readline';
import promises from 'node:readline/promises';
import { Readable } from 'node:stream';

import { ArrayBuffer, Error, Object, Promise, Uint8Array, process, setImmediate } from './builtins.mjs';
import { nap } from './channel.mjs';

const { readSync, readFileSync } = fs;
const { O_RDONLY, O_NONBLOCK } = fs.constants;
const { concat, from, allocUnsafe, alloc } = Buffer;
const { defineProperty } = Object;
const isBytes = ArrayBuffer.isView;
const later = setImmediate;

const PIECE_BYTES = 1 << 16;
const LONGEST_NAP_MS = 32;
const STANDARD = [0, '/dev/stdin', '/dev/fd/0', '/proc/self/fd/0'];

export class Input {
  #scope;
  #channel;
  #fd = quick();
  #socket = null;
  #stream = null;
  #rest = alloc(0); // read from the pipe and not yet consumed
  #ended = false; // the pipe is at its end
  #wanted = false; // the stream waits for data
  #giving = false;
  #asked = null; // the run that was reported as waiting, for the current read

  constructor(scope, channel) {
    this.#scope = scope;
    this.#channel = channel;
    this.restore();
    defineProperty(process, 'stdin', { configurable: true, enumerable: true, get: () => this.#stream });
    this.#patchReads();
    this.#patchQuestions();
  }

  /** Begin an eval: reopen the stream, whatever was done to it. */
  restore() {
    this.#asked = null;
    if (this.#stream === null || this.#stream.readableEnded || this.#stream.destroyed || this.#stream.done) {
      this.#stream = new Source((stream) => this.#want(stream));
      this.#wanted = false;
    }
  }

  /** After an eval's first turn: report a pending read to the worker. */
  waiting() {
    const run = this.#scope.running;
    if (run === null || !run.reading || !this.#wanted || this.#rest.length > 0) return;
    run.reading = false;
    this.#ask(run);
  }

  /** Handle code that waits for data. Only a running eval that may read gets any. */
  #want(stream) {
    if (stream !== this.#stream) return void stream.push(null);
    this.#wanted = true;
    this.#read();
  }

  #read() {
    const run = this.#scope.running;
    if (run === null || this.#scope.late()) return;
    if (!run.stdin) return this.#end();
    run.reading = run.reads = true;
    this.#asked = null;
    run.turn(); // checks `reading` after the settled promises' jobs
    this.#go();
  }

  #go() {
    const run = this.#scope.running;
    if (run === null || !run.reads || !this.#wanted || this.#giving) return;
    if (this.#rest.length > 0 || this.#ended) {
      // One line per turn, so that code reading line by line can request the next one.
      this.#giving = true;
      later(() => this.#give());
    } else {
      this.#open().resume();
    }
  }

  #give() {
    this.#giving = false;
    const run = this.#scope.running;
    if (run === null || !run.reads || !this.#wanted) return;
    if (this.#rest.length === 0) return this.#ended ? this.#end() : this.#go();
    const line = this.#rest.indexOf(10) + 1;
    this.#wanted = false;
    this.#scope.within(run.n, () => this.#stream.push(this.#take(line || this.#rest.length)));
  }

  #end() {
    this.#wanted = false;
    this.#stream.done = true;
    this.#stream.push(null);
  }

  #open() {
    if (this.#socket !== null) return this.#socket;
    const socket = (this.#socket = new Socket({ fd: this.#fd, readable: true, writable: false }));
    socket.unref();
    socket.on('data', (chunk) => {
      socket.pause();
      this.#rest = concat([this.#rest, chunk]);
      this.#go();
    });
    const over = () => {
      this.#ended = true;
      this.#go();
    };
    socket.on('end', over);
    socket.on('error', over);
    return socket;
  }

  #take(size) {
    const taken = this.#rest.subarray(0, size);
    this.#rest = this.#rest.subarray(size);
    return taken;
  }

  #ask(run) {
    if (this.#asked === run) return;
    this.#asked = run;
    this.#channel.send({ t: 'need-input', n: run.n });
  }

  /** Return at most `size` bytes, like a blocking read; none at the end or if the code may not read. */
  #now(size) {
    const run = this.#scope.running;
    if (run === null || !run.stdin || this.#scope.late()) return alloc(0);
    const piece = allocUnsafe(PIECE_BYTES);
    this.#asked = null;
    for (let ms = 1; this.#rest.length === 0 && !this.#ended; ) {
      const got = this.#attempt(piece);
      if (got > 0) this.#rest = from(piece.subarray(0, got));
      else if (got === 0) this.#ended = true;
      else {
        this.#ask(run);
        nap(ms);
        ms = ms * 2 > LONGEST_NAP_MS ? LONGEST_NAP_MS : ms * 2;
      }
    }
    return this.#take(size);
  }

  #attempt(piece) {
    const waits = this.#socket?.read() ?? null; // data buffered by the stream meanwhile
    if (waits !== null) return waits.copy(piece);
    try {
      return readSync(this.#fd, piece, 0, piece.length, null);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      return -1;
    }
  }

  #patchReads() {
    const input = this;
    fs.readSync = function (fd, buffer, offset, length, position) {
      if (fd !== 0 || !isBytes(buffer)) return readSync.apply(this, arguments);
      if (typeof offset === 'object' && offset !== null) ({ offset, length, position } = offset);
      const start = offset ?? 0;
      const data = input.#now(length ?? buffer.byteLength - start);
      new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength).set(data, start);
      return data.length;
    };
    fs.readFileSync = function (path, options) {
      if (!STANDARD.includes(path)) return readFileSync.apply(this, arguments);
      const parts = [];
      for (let data = input.#now(PIECE_BYTES); data.length > 0; data = input.#now(PIECE_BYTES)) parts.push(from(data));
      const encoding = typeof options === 'string' ? options : options?.encoding;
      return encoding && encoding !== 'buffer' ? concat(parts).toString(encoding) : concat(parts);
    };
  }

  /** Treat a question as a read of its eval, even if the stream has long been flowing. At the end of
   * the input it fails, since readline would never settle it. */
  #patchQuestions() {
    const input = this;
    const { question } = readline.Interface.prototype;
    readline.Interface.prototype.question = function (...args) {
      const result = question.apply(this, args);
      if (this.input === input.#stream && input.#wanted) input.#read();
      return result;
    };
    const { question: promised } = promises.Interface.prototype;
    promises.Interface.prototype.question = function (...args) {
      let over;
      const closed = new Promise((_, reject) => {
        over = () => reject(new Error('the input ended before it answered the question'));
      });
      this.once('close', over);
      const result = promised.apply(this, args).finally(() => this.off('close', over));
      if (this.input === input.#stream && input.#wanted) input.#read();
      return Promise.race([result, closed]);
    };
  }
}

class Source extends Readable {
  fd = 0;
  done = false;
  #want;

  constructor(want) {
    super({ emitClose: false, highWaterMark: 1 }); // no read-ahead
    this.#want = want;
  }

  _read() {
    this.#want(this);
  }

  ref() {
    return this;
  }

  unref() {
    return this;
  }
}

/** Open the pipe for non-blocking reads, which interrupts can end; the descriptor itself is unchanged. */
function quick() {
  try {
    return fs.openSync('/proc/self/fd/0', O_RDONLY | O_NONBLOCK);
  } catch {
    return 0;
  }
}
