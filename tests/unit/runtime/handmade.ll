; A model written by hand, to test the runtime without the compiler. It needs the thread pool's text before it.
;
;   x: f32[3,5] (input 0)   w: f32[5] (params + 0)   b: f32[5] (params + 64)   y: f32[3,5] (output 0)
;
;   step 0, scale:  t = x * w, in parallel over rows; t is column-major with columns padded to 4: f32[5,4] (workspace + 64)
;   step 1, shift:  y = t + b

%rows = type { ptr, ptr, ptr }  ; x, w, t

declare i64 @llvm.readcyclecounter()

define internal void @scale.rows(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %ctx
  %w.p = getelementptr %rows, ptr %ctx, i32 0, i32 1
  %w = load ptr, ptr %w.p
  %t.p = getelementptr %rows, ptr %ctx, i32 0, i32 2
  %t = load ptr, ptr %t.p
  br label %row
row:
  %r = phi i64 [ %begin, %entry ], [ %r.next, %row.end ]
  br label %column
column:
  %c = phi i64 [ 0, %row ], [ %c.next, %column ]
  %x.i = getelementptr [5 x float], ptr %x, i64 %r, i64 %c
  %w.i = getelementptr float, ptr %w, i64 %c
  %t.i = getelementptr [4 x float], ptr %t, i64 %c, i64 %r
  %a = load float, ptr %x.i, align 4
  %b = load float, ptr %w.i, align 4
  %product = fmul float %a, %b
  store float %product, ptr %t.i, align 4
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, 5
  br i1 %c.more, label %column, label %row.end
row.end:
  %r.next = add i64 %r, 1
  %r.more = icmp slt i64 %r.next, %end
  br i1 %r.more, label %row, label %leave
leave:
  ret void
}

define internal void @scale(ptr %inputs, ptr %params, ptr %workspace, ptr %pool) {
  %ctx = alloca %rows
  %x = load ptr, ptr %inputs
  %t = getelementptr i8, ptr %workspace, i64 64
  %w.p = getelementptr %rows, ptr %ctx, i32 0, i32 1
  %t.p = getelementptr %rows, ptr %ctx, i32 0, i32 2
  store ptr %x, ptr %ctx
  store ptr %params, ptr %w.p
  store ptr %t, ptr %t.p
  call void @mlc_parallel(ptr %pool, ptr @scale.rows, ptr %ctx, i64 3)
  ret void
}

define internal void @shift(ptr %outputs, ptr %params, ptr %workspace) {
entry:
  %y = load ptr, ptr %outputs
  %t = getelementptr i8, ptr %workspace, i64 64
  %b = getelementptr i8, ptr %params, i64 64
  br label %element
element:
  %i = phi i64 [ 0, %entry ], [ %next, %element ]
  %r = udiv i64 %i, 5
  %c = urem i64 %i, 5
  %t.i = getelementptr [4 x float], ptr %t, i64 %c, i64 %r
  %b.i = getelementptr float, ptr %b, i64 %c
  %y.i = getelementptr float, ptr %y, i64 %i
  %u = load float, ptr %t.i, align 4
  %v = load float, ptr %b.i, align 4
  %sum = fadd float %u, %v
  store float %sum, ptr %y.i, align 4
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 15
  br i1 %more, label %element, label %leave
leave:
  ret void
}

define void @mlc_step(ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool, i64 %i) {
  %first = icmp eq i64 %i, 0
  br i1 %first, label %zero, label %one
zero:
  call void @scale(ptr %inputs, ptr %params, ptr %workspace, ptr %pool)
  ret void
one:
  call void @shift(ptr %outputs, ptr %params, ptr %workspace)
  ret void
}

define i32 @mlc_run(ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool) {
  call void @scale(ptr %inputs, ptr %params, ptr %workspace, ptr %pool)
  call void @shift(ptr %outputs, ptr %params, ptr %workspace)
  ret i32 0
}

define void @mlc_profile(ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool, ptr %ns) {
  %start = call i64 @llvm.readcyclecounter()
  call void @scale(ptr %inputs, ptr %params, ptr %workspace, ptr %pool)
  %middle = call i64 @llvm.readcyclecounter()
  call void @shift(ptr %outputs, ptr %params, ptr %workspace)
  %end = call i64 @llvm.readcyclecounter()
  %first = sub i64 %middle, %start
  %second = sub i64 %end, %middle
  %ns.1 = getelementptr i64, ptr %ns, i64 1
  %before.0 = load i64, ptr %ns
  %before.1 = load i64, ptr %ns.1
  %after.0 = add i64 %before.0, %first
  %after.1 = add i64 %before.1, %second
  store i64 %after.0, ptr %ns
  store i64 %after.1, ptr %ns.1
  ret void
}
