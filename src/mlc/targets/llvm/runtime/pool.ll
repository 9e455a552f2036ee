; The thread pool of a compiled model, in LLVM IR so that no C compiler is needed and every 64-bit Linux target gets it.
; `pool_ir` in this folder appends what differs between CPUs: @mlc.pool.relax and @mlc.pool.futex_number.
;
;   ptr  @mlc_pool_create(i32 threads)                      threads in 1..1024, the caller included; null on failure
;   void @mlc_pool_destroy(ptr pool)                        joins the workers; null is allowed; no region may be running
;   void @mlc_parallel(ptr pool, ptr fn, ptr ctx, i64 n)    calls fn(ctx, begin, end) on parts that cover 0..n
;
; How a region runs. The caller, who is thread 0, writes the job, then raises `epoch`. Each worker watches `epoch`, claims
; its share, runs it, and raises `done`. The caller runs its own share, then every share that is still unclaimed (its worker
; is asleep, or another program has its core), and waits until `done` counts every share of a worker of every region so far.
; A share is claimed by raising its `claim` from the last epoch to this one, which only one of the two can do; who has it
; may read the job, for the region cannot end before. All counters only ever grow (and wrap together), so nothing is reset
; between regions: a reset would be one more cache line to fetch before the epoch can be published.
;
; Both waits spin first and sleep in a futex later: after 65536 looks, which take 0.6 to 3 ms. A region that finds its
; workers awake starts within half a microsecond; waking one takes 10 to 200 microseconds, more than many a kernel takes,
; and what lies between two regions (a serial kernel, the caller's work between two runs) is mostly shorter than that spin.
; A sleeper says so in a word of its own before it sleeps, so the other side enters the kernel only when someone is asleep.
; Lost wake-ups are impossible: the sleeper raises its flag, then the
; kernel compares the futex word; the waker writes the futex word, then reads the flag; all of it sequentially consistent.

; Groups lie 128 bytes apart: x86 fetches cache lines in pairs, and calloc aligns to 16 bytes only.
%mlc.pool = type {
  i32, [124 x i8],                ;  0      threads, caller included; never changes
  i32, [124 x i8],                ;  2      busy: 1 while a caller is inside a region
  i32, i32, [120 x i8],           ;  4, 5   epoch (futex of the workers), sleepers: workers asleep or about to be
  i32, i32, [120 x i8],           ;  7, 8   done (futex of the caller), waiting: 1 while the caller is asleep
  ptr, ptr, i64, [104 x i8],      ; 10 - 12 the job: fn (null: stop), ctx, n
  [0 x %mlc.pool.worker]          ; 14      one a thread; number 0, the caller's, is unused
}
%mlc.pool.worker = type {
  ptr, i64, i64, [104 x i8],      ;  0 - 2  pool, number, pthread_t
  i32, [124 x i8]                 ;  4      claim: the last epoch whose share was claimed
}

declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i64 @syscall(i64, ...)

; ---------------------------------------------------------------------------------------------------------- futex

; Sleeps while the word at %word equals %value. May return early: callers look again.
define internal void @mlc.pool.sleep(ptr %word, i32 %value) nounwind {
  %number = load i64, ptr @mlc.pool.futex_number
  ; 128: FUTEX_WAIT | FUTEX_PRIVATE_FLAG
  %ignored = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i32 128, i32 %value, ptr null)
  ret void
}

; Wakes everyone asleep on %word.
define internal void @mlc.pool.wake(ptr %word) nounwind {
  %number = load i64, ptr @mlc.pool.futex_number
  ; 129: FUTEX_WAKE | FUTEX_PRIVATE_FLAG
  %ignored = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i32 129, i32 2147483647)
  ret void
}

; ------------------------------------------------------------------------------------------------------- partition

; Runs share %number of the job: [n * number / threads, n * (number + 1) / threads), unless it is empty.
define internal void @mlc.pool.share(ptr %fn, ptr %ctx, i64 %n, i64 %threads, i64 %number) nounwind {
  %low = mul i64 %n, %number
  %high = add i64 %low, %n
  %begin = udiv i64 %low, %threads
  %end = udiv i64 %high, %threads
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %run, label %leave
run:
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  br label %leave
leave:
  ret void
}

; Publishes the job that the caller has just written, and wakes the workers that sleep. Returns the new epoch.
define internal i32 @mlc.pool.publish(ptr %pool) nounwind {
  %epoch.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 4
  %sleepers.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 5
  %old = atomicrmw add ptr %epoch.p, i32 1 seq_cst
  %epoch = add i32 %old, 1
  %sleepers = load atomic i32, ptr %sleepers.p seq_cst, align 4
  %hot = icmp eq i32 %sleepers, 0
  br i1 %hot, label %leave, label %wake
wake:
  call void @mlc.pool.wake(ptr %epoch.p)
  br label %leave
leave:
  ret i32 %epoch
}

; ---------------------------------------------------------------------------------------------------------- worker

define internal ptr @mlc.pool.work(ptr %self) nounwind {
entry:
  %pool = load ptr, ptr %self
  %number.p = getelementptr %mlc.pool.worker, ptr %self, i32 0, i32 1
  %number = load i64, ptr %number.p
  %threads = load i32, ptr %pool
  %wide = zext i32 %threads to i64
  %workers = sub i32 %threads, 1
  %epoch.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 4
  %sleepers.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 5
  %done.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 7
  %waiting.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 8
  %fn.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 10
  %ctx.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 11
  %n.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 12
  %claim.p = getelementptr %mlc.pool.worker, ptr %self, i32 0, i32 4
  br label %next

next:                             ; a new pool stands at epoch 0, so a worker that starts late misses nothing
  %seen = phi i32 [ 0, %entry ], [ %epoch, %start ], [ %epoch, %report ], [ %epoch, %rouse ]
  br label %spin
spin:
  %tries = phi i32 [ 65536, %next ], [ %left, %relax ]
  %looked = load atomic i32, ptr %epoch.p acquire, align 4
  %same = icmp eq i32 %looked, %seen
  br i1 %same, label %relax, label %start
relax:
  call void @mlc.pool.relax()
  %left = sub i32 %tries, 1
  %tired = icmp eq i32 %left, 0
  br i1 %tired, label %lie.down, label %spin

lie.down:
  %before = atomicrmw add ptr %sleepers.p, i32 1 seq_cst
  br label %sleep
sleep:
  call void @mlc.pool.sleep(ptr %epoch.p, i32 %seen)
  %woken = load atomic i32, ptr %epoch.p seq_cst, align 4
  %early = icmp eq i32 %woken, %seen
  br i1 %early, label %sleep, label %rise
rise:
  %after = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst
  br label %start

start:
  %epoch = phi i32 [ %looked, %spin ], [ %woken, %rise ]
  %last.epoch = sub i32 %epoch, 1
  %got = cmpxchg ptr %claim.p, i32 %last.epoch, i32 %epoch acq_rel acquire
  %mine = extractvalue { i32, i1 } %got, 1
  br i1 %mine, label %look, label %next
look:
  %fn = load ptr, ptr %fn.p
  %stop = icmp eq ptr %fn, null
  br i1 %stop, label %leave, label %run
run:
  %ctx = load ptr, ptr %ctx.p
  %n = load i64, ptr %n.p
  call void @mlc.pool.share(ptr %fn, ptr %ctx, i64 %n, i64 %wide, i64 %number)
  br label %report
report:                           ; the last worker of the region wakes a caller that sleeps
  %earlier = atomicrmw add ptr %done.p, i32 1 seq_cst
  %done = add i32 %earlier, 1
  %all = mul i32 %epoch, %workers
  %last = icmp eq i32 %done, %all
  %waiting = load atomic i32, ptr %waiting.p seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  %call = and i1 %last, %asleep
  br i1 %call, label %rouse, label %next
rouse:
  call void @mlc.pool.wake(ptr %done.p)
  br label %next

leave:
  ret ptr null
}

; -------------------------------------------------------------------------------------------------------- parallel

define void @mlc_parallel(ptr %pool, ptr %fn, ptr %ctx, i64 %n) nounwind {
entry:
  %alone = icmp eq ptr %pool, null
  %tiny = icmp sle i64 %n, 1
  %no.pool = or i1 %alone, %tiny
  br i1 %no.pool, label %serial, label %look
look:
  %threads = load i32, ptr %pool
  %one = icmp eq i32 %threads, 1
  br i1 %one, label %serial, label %lock
lock:                             ; a second caller does not wait: its own core would be idle meanwhile
  %busy.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 2
  %got = cmpxchg ptr %busy.p, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %got, 1
  br i1 %mine, label %launch, label %serial

serial:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  ret void

launch:
  %done.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 7
  %waiting.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 8
  %fn.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 10
  %ctx.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 11
  %n.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 12
  store ptr %fn, ptr %fn.p
  store ptr %ctx, ptr %ctx.p
  store i64 %n, ptr %n.p
  %epoch = call i32 @mlc.pool.publish(ptr %pool)
  %wide = zext i32 %threads to i64
  call void @mlc.pool.share(ptr %fn, ptr %ctx, i64 %n, i64 %wide, i64 0)
  %workers = sub i32 %threads, 1
  %all = mul i32 %epoch, %workers
  %last.epoch = sub i32 %epoch, 1
  br label %others

others:                           ; shares that nobody has claimed
  %i = phi i64 [ 1, %launch ], [ %following, %claimed ]
  %more = icmp ult i64 %i, %wide
  br i1 %more, label %other, label %spin
other:
  %claim.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 14, i64 %i, i32 4
  %claim = load atomic i32, ptr %claim.p monotonic, align 4
  %free = icmp eq i32 %claim, %last.epoch
  br i1 %free, label %take, label %claimed
take:
  %taken = cmpxchg ptr %claim.p, i32 %last.epoch, i32 %epoch acq_rel monotonic
  %ours = extractvalue { i32, i1 } %taken, 1
  br i1 %ours, label %stand.in, label %claimed
stand.in:
  call void @mlc.pool.share(ptr %fn, ptr %ctx, i64 %n, i64 %wide, i64 %i)
  %counted = atomicrmw add ptr %done.p, i32 1 seq_cst
  br label %claimed
claimed:
  %following = add i64 %i, 1
  br label %others

spin:
  %tries = phi i32 [ 65536, %others ], [ %left, %relax ]
  %looked = load atomic i32, ptr %done.p acquire, align 4
  %finished = icmp eq i32 %looked, %all
  br i1 %finished, label %unlock, label %relax
relax:
  call void @mlc.pool.relax()
  %left = sub i32 %tries, 1
  %tired = icmp eq i32 %left, 0
  br i1 %tired, label %lie.down, label %spin

lie.down:
  store atomic i32 1, ptr %waiting.p seq_cst, align 4
  br label %check
check:
  %count = load atomic i32, ptr %done.p seq_cst, align 4
  %enough = icmp eq i32 %count, %all
  br i1 %enough, label %rise, label %sleep
sleep:
  call void @mlc.pool.sleep(ptr %done.p, i32 %count)
  br label %check
rise:
  store atomic i32 0, ptr %waiting.p monotonic, align 4
  br label %unlock

unlock:
  store atomic i32 0, ptr %busy.p release, align 4
  ret void
}

; ---------------------------------------------------------------------------------------------- creation and the end

; Stops and joins workers 1 .. %started - 1, and frees the pool.
define internal void @mlc.pool.finish(ptr %pool, i64 %started) nounwind {
entry:
  %fn.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 10
  store ptr null, ptr %fn.p
  %epoch = call i32 @mlc.pool.publish(ptr %pool)
  br label %next
next:
  %i = phi i64 [ 1, %entry ], [ %following, %join ]
  %more = icmp ult i64 %i, %started
  br i1 %more, label %join, label %release
join:
  %thread.p = getelementptr %mlc.pool, ptr %pool, i32 0, i32 14, i64 %i, i32 2
  %thread = load i64, ptr %thread.p
  %ignored = call i32 @pthread_join(i64 %thread, ptr null)
  %following = add i64 %i, 1
  br label %next
release:
  call void @free(ptr %pool)
  ret void
}

define void @mlc_pool_destroy(ptr %pool) nounwind {
  %none = icmp eq ptr %pool, null
  br i1 %none, label %leave, label %finish
finish:
  %threads = load i32, ptr %pool
  %wide = zext i32 %threads to i64
  call void @mlc.pool.finish(ptr %pool, i64 %wide)
  br label %leave
leave:
  ret void
}

define ptr @mlc_pool_create(i32 %threads) nounwind {
entry:
  %from.zero = sub i32 %threads, 1
  %sane = icmp ult i32 %from.zero, 1024
  br i1 %sane, label %allocate, label %fail
allocate:
  %wide = zext i32 %threads to i64
  %end.p = getelementptr %mlc.pool, ptr null, i32 0, i32 14, i64 %wide
  %size = ptrtoint ptr %end.p to i64
  %pool = call ptr @calloc(i64 1, i64 %size)
  %none = icmp eq ptr %pool, null
  br i1 %none, label %fail, label %fill
fill:
  store i32 %threads, ptr %pool
  br label %next
next:
  %i = phi i64 [ 1, %fill ], [ %following, %started ]
  %more = icmp ult i64 %i, %wide
  br i1 %more, label %start, label %ready
start:
  %worker = getelementptr %mlc.pool, ptr %pool, i32 0, i32 14, i64 %i
  %number.p = getelementptr %mlc.pool.worker, ptr %worker, i32 0, i32 1
  %thread.p = getelementptr %mlc.pool.worker, ptr %worker, i32 0, i32 2
  store ptr %pool, ptr %worker
  store i64 %i, ptr %number.p
  %code = call i32 @pthread_create(ptr %thread.p, ptr null, ptr @mlc.pool.work, ptr %worker)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %undo, label %started
started:
  %following = add i64 %i, 1
  br label %next
ready:
  ret ptr %pool
undo:                             ; too few resources: a pool of another size would not be what the caller asked for
  call void @mlc.pool.finish(ptr %pool, i64 %i)
  ret ptr null
fail:
  ret ptr null
}
