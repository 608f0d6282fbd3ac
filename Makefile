# Everything that goverbs needs to build and test itself. On a fresh machine with Go,
# gcc and apt no step by hand is needed: kernels, QEMU and rdma-core's programs are
# fetched into the user's cache directory.

export CGO_ENABLED := 0

BUILD    := $(CURDIR)/.build
KERNEL   ?= 6.1
ARCH     ?= $(shell go env GOARCH)
MODES    ?= roce ib
MATRIX   := amd64/5.10 amd64/6.1 amd64/6.12 amd64/latest arm64/6.12 \
	$(foreach k,6.1 6.12 latest,amd64/$k/mlx5-roce amd64/$k/mlx5-ib amd64/$k/siw)
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -X main.version=$(VERSION)
VMRUN    := $(BUILD)/vmrun
RESULTS  := $(BUILD)/matrix
RECORD    = $(BUILD)/testmatrix record -kernel $(KERNEL) -arch $(ARCH) -dir $(RESULTS)
PACKAGES := ibverbs-utils,ibverbs-providers
GUEST     = -env GOVERBS_KERNEL_TEST=1 -env VERBS=/bin/verbs $(if $(WALK),-env GOVERBS_WALK=$(WALK)) $(SLOW)
# Another architecture is emulated even where there is KVM.
SLOW      = $(if $(filter-out $(shell go env GOHOSTARCH),$(ARCH)),-env GOVERBS_SLOW=1)

# The largest size of the static command, in bytes.
VERBS_LIMIT := 8000000

.PHONY: build test matrix readme demo check unit race racevm walk abi bench benchonce sidebyside vmtest kernel perf flat traffic hosts control mlx5 mlx5cm siw generate golden size deps clean help benchreadme hotpaths conns benchsiw benchcount personalities cards

build: $(VMRUN) verbs hca ## build the commands into .build

.PHONY: verbs
verbs:
	go build -trimpath -ldflags "$(LDFLAGS)" -o $(BUILD)/verbs ./tools/verbs

# The model of a ConnectX, which vmrun finds beside itself.
.PHONY: hca
hca:
	go build -trimpath -o $(BUILD)/hca ./test/hca/cmd/hca

# vmrun and staticcheck have a module of their own, as has the test of gRPC, so that a program which
# imports the library has none of what they need.
.PHONY: $(VMRUN)
$(VMRUN):
	go build -C tools/vmrun -o $@ .

demo: build ## our ping-pong and rdma-core's, in a VM, side by side
	go build -trimpath -o $(BUILD)/demo ./test/demo
	$(VMRUN) -kernel $(KERNEL) -with $(PACKAGES) -file $(BUILD)/verbs:/bin/verbs -env VERBS=/bin/verbs $(BUILD)/demo

test: WALK = 60s
test: SIDEBYSIDE = -rounds 1
test: FLAT = 5x
# On ConnectX each mode goes one way of giving commands; on InfiniBand what does not depend on the link
# is not repeated, nor on RoCE what of connections and streams is seen on rxe and has nothing of the
# device. rdma-core's programs run on RoCE in the boots of mlx5cm, and in those of control where a card
# dies, on two hosts, and on the other kernels.
test: WAYS-roce = auto
test: WAYS-ib = write
test: WALK-mlx5 = 2s
test: SKIP-ib = $(ANYLINK)
test: SKIP-cm = ^Test(ManyConns|UserChanges|DialNames|DialCancelled|NoDevice|ListenerClose|DialProtocolViolations|TimewaitExit|KeepAlive|Window)|^TestStream\z/^spin
test: SKIP-interop = ^Test(Paths|PeerKilled|Rping\z|Perf(Options|ServerKilled|HugePages|Progress|Clients|CPU)|Perftest|RpingPersistent|Doctor(Namespace|MTU|ClosedNode|NoAddress|Memlock))
test: SKIP-control = ^Test(Fatal|Reload)$$
test: CONTROLS = $(KERNEL)-ib-alone latest-ib-hosts $(patsubst %,%-roce-programs,$(filter-out $(KERNEL),6.1 6.12 latest))
test: check unit race abi benchonce sidebyside size kernel mlx5 mlx5cm ## everything, with the kernel tests on one kernel
	+$(AT_ONCE) vmtest perf hosts control cards siw flat traffic racevm

check: deps $(VMRUN) ## gofmt, vet, staticcheck, other architectures
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt: run gofmt -w on:" $$files; exit 1; }
	go vet ./...
	go vet -C tools/vmrun ./...
	go vet -C test/grpc ./...
	GOARCH=arm64 go vet ./...
	GOARCH=riscv64 go build ./mmio/... ./uverbs/... ./netlinkrdma/... ./cm/...
	go mod tidy -diff
	go -C tools/vmrun mod tidy -diff
	go -C test/grpc mod tidy -diff
	go build -C tools/vmrun -o $(BUILD)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(BUILD)/staticcheck ./...
	cd tools/vmrun && $(BUILD)/staticcheck ./...
	cd test/grpc && $(BUILD)/staticcheck ./...

unit: deps ## the tests that need no kernel
	go test ./...
	go test -C tools/vmrun -short ./...

race: deps ## the same under the race detector, where goroutines meet
	CGO_ENABLED=1 go test -race ./mmio/... ./uverbs/... ./netlinkrdma/... ./cm/... ./tools/verbs/... ./test/hca/...
	CGO_ENABLED=1 go test -C tools/vmrun -race -short ./...

abi: deps $(VMRUN) ## generated files against the kernel's headers, the newest and this release's
	set -e; new=$$($(VMRUN) get -suite sid linux-libc-dev); old=$$($(VMRUN) get linux-libc-dev); \
	go run ./tools/abigen -check -include $$new/usr/include; \
	for dir in $$new $$old; do \
		GOVERBS_UAPI_INCLUDE=$$dir/usr/include go test -count=1 ./uverbs/internal/abi ./mmio/rxe/internal/abi ./mmio/mlx5/internal/abi ./mmio/siw/internal/abi ./netlinkrdma/internal/abi ./cm/internal/abi; \
	done

vmtest: ## vmrun's own tests, which boot VMs
	go test -C tools/vmrun -count=1 -timeout 20m -run VM .

# How long for each, as go test -fuzztime has it, and which, as grep -E has it; an input that fails
# becomes a file in the package's testdata and is tested from then on. go list names the test files of
# every module, so a fuzz test that is new is run, wherever it stands. An input of some kilobytes would
# otherwise be made smaller for up to a minute each time.
FUZZTIME ?= 20000x
FUZZ     ?= .
FUZZMODULES := . tools/vmrun test/grpc
TESTFILES = {{range .TestGoFiles}}{{$$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$$.Dir}}/{{.}}{{"\n"}}{{end}}
.PHONY: fuzz fuzzlist
fuzz: ## every fuzz test of every module for FUZZTIME
	@set -e; all=$$($(MAKE) -s fuzzlist); test -n "$$all" || { echo "no fuzz test matches $(FUZZ)"; exit 1; }; \
	echo "$$all" | while read -r dir f; do \
		echo "$$dir: $$f"; go test -C $$dir -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s . </dev/null || exit 1; \
	done

fuzzlist: ## the folder and the name of each
	@set -e; files=$$(for m in $(FUZZMODULES); do go list -C $$m -f '$(TESTFILES)' ./... || exit 1; done); \
		echo "$$files" | xargs grep -Ho '^func Fuzz[A-Za-z0-9_]*' | sed 's/\/[^\/]*:func / /' | sort -u | grep -E '$(FUZZ)'

benchonce: ## every benchmark once, so that none rots
	go test -run '^$$' -bench . -benchtime 1x ./mmio/... ./uverbs/...

# No time is asserted: the limit is printed beside what was measured.
HOTPATHS ?= -count 3
hotpaths: ## post and poll on ring memory, without a kernel: by the work request, beside the limit of 25 ns at 16 of them
	go test -run '^$$' -bench '^BenchmarkPostPoll$$' $(HOTPATHS) ./mmio/rxe ./mmio/mlx5 ./mmio/siw | awk '1; \
		$$1 == "pkg:" { n = split($$2, part, "/") } \
		$$1 ~ /PostPoll\/16-/ { for (i = 3; i <= NF; i++) if ($$i == "ns/both") \
			printf "  %s, 16 at a time: post and poll %s ns, limit 25: %s\n", part[n], $$(i-1), $$(i-1) <= 25 ? "within" : "above" }'

# The C programs are linked without the libraries that libibverbs itself needs; the guest has them.
$(BUILD)/rdmacore-%: test/bench/rdmacore/%.c test/bench/rdmacore/common.h | $(VMRUN)
	set -e; dir=$$($(VMRUN) get libibverbs-dev); \
	gcc -O2 -Wall -o $@ $< -I$$dir/usr/include -L$$dir/usr/lib/$$(gcc -print-multiarch) \
		-Wl,--unresolved-symbols=ignore-in-shared-libs -libverbs

SIDE     = calls open mr qps start
SIDEWITH = $(PACKAGES),perftest,rdmacm-utils
.PHONY: side
side: deps build $(SIDE:%=$(BUILD)/rdmacore-%)
	go build -trimpath -o $(BUILD)/bench ./test/bench
	go build -trimpath -ldflags '-s -w' -o $(BUILD)/bench-open ./test/bench/open
GUESTSIDE = $(VMRUN) -kernel $(KERNEL) -timeout 2h -with $(SIDEWITH) $(foreach p,$(SIDE),-file $(BUILD)/rdmacore-$p:/bin/rdmacore-$p) \
	-file $(BUILD)/verbs:/bin/verbs -file $(BUILD)/bench-open:/bin/bench-open

# Processors of the guest poll while they are idle: to wake one that halts takes an emulator tens of
# microseconds, and which of the two programs sleeps when decides the figures.
# BENCH are flags of test/bench, such as BENCH="-rows ^send -rounds 9"; without it all is measured.
# What is kept is found by architecture, kernel and commit, and can be compared: .build/bench compare A B.
BENCH ?=
KEEP  ?= $(BUILD)/results
bench: side ## ours beside rdma-core's programs, in turn, on KERNEL: a table, JSON and a page
	rm -f $(BUILD)/bench.json
	cd $(BUILD) && status=0; \
	$(GUESTSIDE) -mem 4G --append=idle=poll -out bench.json:$(BUILD)/bench.json ./bench -commit $(VERSION) -json bench.json -progress=false $(BENCH) || status=$$?; \
	./bench keep -dir $(KEEP) bench.json && exit $$status

BENCHSIW ?= -sizes 2,64,4096,65536
benchsiw: side ## traffic and connections on soft iWARP, as a table; flags in BENCHSIW
	cd $(BUILD) && $(GUESTSIDE) -device siw --append=idle=poll ./bench -cm -guest -commit $(VERSION) -progress=false $(BENCHSIW)

# What one side does alone can be counted: the machine has one processor then, and two that poll would share it.
BENCHCOUNT ?= -rounds 3 -sizes 2,64,4096 -mr 4096,1048576 -rows '^(open|call|mr)/|^(read|atomic)-(lat|bw)/.*/wait=poll$$'
benchcount: side ## the same by instructions executed, about the same on a busy machine, as a table; flags in BENCHCOUNT
	cd $(BUILD) && $(GUESTSIDE) -icount -cpus 1 ./bench -commit $(VERSION) -progress=false $(BENCHCOUNT)

SIDEBYSIDE ?= -rounds 5
sidebyside: side ## a short form of it, and post and poll on a modelled ConnectX as well
	cd $(BUILD) && $(GUESTSIDE) --append=idle=poll ./bench -progress=false -mr 4096,1048576 -rows '^(call|open|connect|mr)/|^(send-lat|write-bw)/size=(2|65536)/wait=poll$$' $(SIDEBYSIDE)
	cd $(BUILD) && $(GUESTSIDE) -device mlx5,mode=ib ./bench -progress=false -rows ^call/ $(SIDEBYSIDE)

size: verbs
	@size=$$(stat -c %s $(BUILD)/verbs); echo "static verbs binary: $$size bytes"; test $$size -lt $(VERBS_LIMIT)

# What the boots of kernel run. One has what gives commands by write(): the tests that go each
# way, and once more those that go one. Where another architecture is emulated, which takes long,
# the first boot has the tests that go each way, and the others are not repeated.
GUESTS := mmio mmio/rxe netlinkrdma uverbs cm test/conformance test/classic test/interop test/abitrace tools/verbs/internal/perf
.PHONY: guest
guest: $(VMRUN) testmatrix
	GOARCH=$(ARCH) go build -trimpath -ldflags "$(LDFLAGS)" -o $(BUILD)/$(ARCH)/verbs ./tools/verbs
	for p in $(GUESTS); do GOARCH=$(ARCH) go test -c -trimpath -o $(BUILD)/$(ARCH)/$$(basename $$p).test ./$$p || exit 1; done
	GOARCH=$(ARCH) go test -C test/grpc -c -trimpath -o $(BUILD)/$(ARCH)/grpc.test .

BOOT   = cd $(BUILD)/$(ARCH) && $(RECORD) -name $(@:boot-%=%)
INVM   = $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) $(GUEST) -file verbs:/bin/verbs
RECORD_TEST = -test.v=test2json

.PHONY: boot-kernel boot-cm boot-write boot-interop boot-perf boot-bare
boot-kernel:
	$(BOOT) -path auto $(INVM) $(if $(SLOW),,-env GOVERBS_WAYS=auto,ioctl) -file $(CURDIR)/uverbs/testdata:$(BUILD)/$(ARCH)/testdata \
		mmio.test --- rxe.test --- uverbs.test --- netlinkrdma.test $(RECORD_TEST) --- conformance.test $(RECORD_TEST) --- abitrace.test -test.run Trace
boot-cm:
	$(BOOT) -path auto $(INVM) -module bonding cm.test $(RECORD_TEST) --- classic.test $(RECORD_TEST) --- grpc.test
boot-write: override WALK = 1s
boot-write:
	$(BOOT) -path write $(INVM) -env RDMAABI=write -env GOVERBS_WAYS=write conformance.test $(RECORD_TEST)
boot-interop:
	$(BOOT) $(INVM) -with $(PACKAGES),rdmacm-utils,iproute2 -env GOVERBS_IPROUTE2=1 \
		interop.test -test.skip '^TestPerf' $(RECORD_TEST) --- conformance.test -test.run '^TestIproute2$$' $(RECORD_TEST)
boot-perf:
	$(BOOT) $(INVM) -with $(PACKAGES),perftest perf.test $(RECORD_TEST) --- interop.test -test.run '^TestPerf' $(RECORD_TEST)
boot-bare:
	$(BOOT) $(INVM) -env GOVERBS_BARE=1 -load none \
		conformance.test -test.run '^TestModuleNotLoaded$$' $(RECORD_TEST) --- interop.test -test.run '^TestDoctorBare$$' $(RECORD_TEST) --- \
		cm.test -test.run '^TestNoModule$$' $(RECORD_TEST)

# The boots run as many at a time as BOOTS says, and one that fails does not keep the others from running.
BOOTS ?= 2
AT_ONCE = $(MAKE) --no-print-directory -k $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(BOOTS)) KERNEL=$(KERNEL) ARCH=$(ARCH) WALK=$(WALK) FLAT='$(FLAT)' \
	WAYS-roce='$(WAYS-roce)' WAYS-ib='$(WAYS-ib)' WALK-mlx5='$(WALK-mlx5)' SKIP-ib='$(SKIP-ib)' SKIP-cm='$(SKIP-cm)' SKIP-interop='$(SKIP-interop)' SKIP-control='$(SKIP-control)' CONTROLS='$(CONTROLS)'
kernel: guest ## the kernel tests and interop on KERNEL and ARCH
	rm -f $(RESULTS)/$(ARCH)-$(KERNEL).*.json
	+$(AT_ONCE) boot-kernel boot-cm boot-interop $(if $(SLOW),,boot-write) boot-bare

perf: guest ## verbs perf, with itself and with perftest, on KERNEL and ARCH
	+$(AT_ONCE) boot-perf

# The median of as many ratios as FLAT says, of ours and of rdma-core's, by instructions, or with
# CLOCK= by the host's clock, for which FLAT=200x is not too much.
FLAT  ?= 10x
CLOCK ?= -icount
flat: deps guest $(BUILD)/rdmacore-flat ## the cost of a message with 1,000 QPs beside that with 2, ours and rdma-core's, on KERNEL
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) $(CLOCK) -env GOVERBS_KERNEL_TEST=1 -with $(PACKAGES) -file $(BUILD)/rdmacore-flat:/bin/rdmacore-flat -env GOVERBS_FLAT=/bin/rdmacore-flat \
		$(if $(CLOCK),-env GOVERBS_FLAT_MOST=1.1) conformance.test -test.run '^$$' -test.bench '^BenchmarkQPs$$' -test.benchtime $(FLAT)

# As of flat, with what is wanted at most and at least: the time of a Conn by that of the verbs, and the
# bandwidth of a stream by that of RDMA WRITE.
TRAFFIC ?= 5x
traffic: guest ## 64 bytes there and back over a Conn beside the verbs, and a stream beside RDMA WRITE and TCP, on KERNEL
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) $(CLOCK) -env GOVERBS_KERNEL_TEST=1 $(if $(CLOCK),-env GOVERBS_PINGPONG_MOST=1.1 -env GOVERBS_STREAM_LEAST=0.8) \
		cm.test -test.run '^$$' -test.bench '^Benchmark(PingPong|Stream)$$' -test.benchtime $(TRAFFIC)

CONNS ?= 10100
conns: $(VMRUN) ## more than 10,000 connections made and closed, and what is left of them, on KERNEL
	go test -c -trimpath -o $(BUILD)/amd64/conns.test ./cm
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) -timeout 1h -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_CONNS=$(CONNS) \
		conns.test -test.run '^TestConnLeaks$$' -test.v -test.timeout 50m

ATTACKS ?= 10000
.PHONY: attacks
attacks: $(VMRUN) ## attacks on a listener while honest clients work, on KERNEL
	go test -c -trimpath -o $(BUILD)/amd64/attacks.test ./cm
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) -timeout 2h -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_ATTACKS=$(ATTACKS) \
		attacks.test -test.run '^TestHostilePeers$$' -test.v -test.timeout 110m

hosts: guest ## two hosts: connections, rdma-core's programs, peers that die, a link that is bad or cut, on KERNEL
	go test -c -trimpath -o $(BUILD)/amd64/hosts.test ./test/hosts
	cd $(BUILD)/amd64 && $(VMRUN) -hosts 2 -cpus 1 -kernel $(KERNEL) $(GUEST) -file verbs:/bin/verbs -with $(PACKAGES),rdmacm-utils hosts.test -test.v

# The walk tells its seed at the start, and ends by itself if it hangs.
walk: WALK = 1h
walk: KERNEL = latest
walk: $(VMRUN) ## the random walk for an hour on the newest kernel; WALK=10m KERNEL=6.1 SEED=N is another
	GOARCH=$(ARCH) go test -c -trimpath -o $(BUILD)/$(ARCH)/conformance.test ./test/conformance
	cd $(BUILD)/$(ARCH) && $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) -timeout 1000h $(GUEST) $(if $(SEED),-env GOVERBS_SEED=$(SEED)) conformance.test -test.run '^TestWalk$$' -test.v

# Whoever fails on the modelled ConnectX must be the one at fault: this is how we know. Each boot has a
# kernel, a mode, and what: all on one host, its programs that transfer and connect, or two hosts. With
# the programs goes what verbs perf can only do there: the newer kernels have dma-bufs, and the card takes them.
CONTROL ?= $(KERNEL)
CONTROLMODES ?= roce ib
CONTROLS = $(foreach k,$(CONTROL),$(foreach m,$(CONTROLMODES),$k-$m-alone $k-$m-hosts))
CONTROLWITH = $(PACKAGES),rdmacm-utils,perftest,infiniband-diags
CONTROL-alone    = -with $(CONTROLWITH) control.test
CONTROL-programs = -env GOVERBS_DEVICES=mlx5_0,mlx5_1 -with $(CONTROLWITH) control.test -test.run '^Test(Pingpong|OnDemandPages|Perftest|ConnectionManager)$$' \
	--- perf.test -test.run '^TestDMABufTraffic$$' -test.v
CONTROL-hosts    = -hosts 2 -cpus 1 -with $(PACKAGES),rdmacm-utils control.test -test.run '^TestHosts$$'
boot-control-%: WORDS = $(subst -, ,$*)
boot-control-%:
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(word 1,$(WORDS)) -device mlx5,mode=$(word 2,$(WORDS)) -env GOVERBS_KERNEL_TEST=1 $(CONTROL-$(word 3,$(WORDS)))
control: $(VMRUN) hca ## rdma-core's programs on a modelled ConnectX, on the kernels CONTROL, with the CONTROLMODES
	go test -c -trimpath -o $(BUILD)/amd64/control.test ./test/control
	go test -c -trimpath -o $(BUILD)/amd64/perf.test ./tools/verbs/internal/perf
	+$(AT_ONCE) $(CONTROLS:%=boot-control-%)

MODEL = -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_MODEL=1
# As of kernel, what it finds is recorded. These guests and the model keep both processors busy, so that
# two boots at once take as long as one after the other. Each mode goes two of the ways of giving commands.
WAYS-roce = auto,write
WAYS-ib   = ioctl,write
SKIP-roce =
SKIP-ib   =
WALK-mlx5 = 5s
# Tests for which it makes no difference what the link is.
ANYLINK   = ^Test(AtOnce|Limits|Many|SharedCQs|Walk|Window|Faults|CQSizes|.*Threads|CloseBeside|Injected|DeviceRemoved|Builder|Allocs|BufferPool|RegMR|Rereg|Resize|QueueFull|PeerState|PeerClosesBusy|Invalidate|Status|OtherPD|SRQImmediate|NoReceive|InlineRecv|SGELimit|PostWhileErr|RingWrap)
.PHONY: boot-mlx5-roce boot-mlx5-ib
boot-mlx5-roce boot-mlx5-ib:
	cd $(BUILD)/$(ARCH) && $(RECORD) -driver $(@:boot-%=%) -name conformance $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) -device mlx5,mode=$(@:boot-mlx5-%=%) $(MODEL) \
		-env GOVERBS_DEVICES=mlx5_0,mlx5_1 -env GOVERBS_WAYS=$(WAYS-$(@:boot-mlx5-%=%)) -env GOVERBS_WALK=$(WALK-mlx5) conformance.test $(RECORD_TEST) $(if $(SKIP-$(@:boot-mlx5-%=%)),-test.skip '$(SKIP-$(@:boot-mlx5-%=%))') \
		$(if $(filter %-ib,$@),--- cm.test -test.run '^TestGID')
mlx5: $(VMRUN) hca testmatrix ## the conformance tests on a modelled ConnectX, and connections by GIDs, on KERNEL and ARCH, with the MODES
	for p in test/conformance cm; do GOARCH=$(ARCH) go test -c -trimpath -o $(BUILD)/$(ARCH)/$$(basename $$p).test ./$$p || exit 1; done
	rm -f $(MODES:%=$(RESULTS)/$(ARCH)-$(KERNEL)-mlx5-%.*.json)
	+$(AT_ONCE) -j1 $(MODES:%=boot-mlx5-%)

# Cards that differ from the usual ones, see test/hca: for each of PERSONALITIES and MODES rdma-core's
# programs, which show that libmlx5 accepts the card, and then the conformance tests. A random one is
# drawn for each boot; the line at its start has the seed, which stands in place of the name to have the
# same again: make personalities PERSONALITIES=4711 MODES=ib. Most tests expect receives in order, which
# a card that is unordered does not keep to.
PERSONALITIES ?= small vf late unordered random
CARDS = $(foreach p,$(PERSONALITIES),$(foreach m,$(MODES),$p-$m))
CARDRUN =
CARDRUN-unordered = ^Test(ReceivesInAnyOrder|SizeLimits|ResizeBusy|WriteRead|Atomic|Fence|TooBig)$$
boot-card-%: WORDS = $(subst -, ,$*)
boot-card-%:
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) -timeout 20m -device mlx5,mode=$(word 2,$(WORDS)),personality=$(word 1,$(WORDS)) $(MODEL) \
		-env GOVERBS_DEVICES=mlx5_0,mlx5_1 -env GOVERBS_WAYS=auto -env GOVERBS_WALK=$(WALK-mlx5) conformance.test $(addprefix -test.run ,$(addsuffix ',$(addprefix ',$(or $(CARDRUN),$(CARDRUN-$(word 1,$(WORDS)))))))
boot-cardcontrol-%: WORDS = $(subst -, ,$*)
boot-cardcontrol-%:
	cd $(BUILD)/amd64 && $(VMRUN) -kernel $(KERNEL) -device mlx5,mode=$(word 2,$(WORDS)),personality=$(word 1,$(WORDS)) -env GOVERBS_KERNEL_TEST=1 \
		-with $(CONTROLWITH) control.test -test.skip '^Test(Hosts|Fatal|Reload)$$'
.PHONY: cardtests
cardtests: $(VMRUN) hca
	go test -c -trimpath -o $(BUILD)/amd64/conformance.test ./test/conformance
personalities: cardtests ## the conformance tests and rdma-core's programs on modelled ConnectX cards that differ, on KERNEL, with the MODES and PERSONALITIES
	go test -c -trimpath -o $(BUILD)/amd64/control.test ./test/control
	+$(AT_ONCE) $(CARDS:%=boot-cardcontrol-%) $(CARDS:%=boot-card-%)
# A short form of it, for make test.
cards: cardtests ## some conformance tests on two of these cards, on KERNEL
	+$(AT_ONCE) CARDRUN='^Test(SizeLimits|Resize|ResizeBusy|QueryPKey|Atomic|Inline|InlineRecv|RingWrap|SRQ|OnDemandQueues|Datagram|XRC|ThreadDomain|ManyOpens|DeviceMemory)$$' \
		boot-card-small-ib boot-card-vf-ib

# Connections are on RoCE, but for those by GIDs, which the boots of mlx5 have: on InfiniBand those by IP
# addresses need a subnet administrator, which the model has not.
SKIP-cm      =
SKIP-interop =
SKIP-control =
.PHONY: boot-mlx5cm boot-mlx5hosts
boot-mlx5cm:
	cd $(BUILD)/amd64 && $(RECORD) -driver mlx5-roce -name cm $(VMRUN) -kernel $(KERNEL) -device mlx5 $(MODEL) -env GOVERBS_DEVICES=mlx5_0,mlx5_1 \
		-module veth -timeout 20m -with $(CONTROLWITH) -file $(BUILD)/verbs:/bin/verbs -env VERBS=/bin/verbs \
		cm.test $(RECORD_TEST) $(if $(SKIP-cm),-test.skip '$(SKIP-cm)') --- classic.test $(RECORD_TEST) --- \
		interop.test $(RECORD_TEST) $(if $(SKIP-interop),-test.skip '$(SKIP-interop)') --- control.test $(if $(SKIP-control),-test.skip '$(SKIP-control)')
boot-mlx5hosts:
	cd $(BUILD)/amd64 && $(VMRUN) -hosts 2 -cpus 1 -kernel $(KERNEL) -device mlx5 $(MODEL) -env GOVERBS_DEVICES=mlx5_0 -with $(PACKAGES),rdmacm-utils \
		hosts.test -test.skip '^Test(Classic|Peers|Cmtime|PeerKilled|LinkDown|LinkBack|DeviceRemoved)$$' --- control.test -test.run '^TestHosts$$'
mlx5cm: $(VMRUN) hca verbs testmatrix ## connections, two hosts, interop and rdma-core's programs on a modelled ConnectX, on KERNEL
	for p in cm test/classic test/control test/hosts test/interop; do \
		go test -c -trimpath -o $(BUILD)/amd64/$$(basename $$p).test ./$$p || exit 1; \
	done
	+$(AT_ONCE) boot-mlx5cm boot-mlx5hosts

# As of mlx5, for soft iWARP, which has the tests of connections as well. It gives a handshake five
# seconds, so that there is less load.
.PHONY: boot-siw
boot-siw:
	cd $(BUILD)/$(ARCH) && $(RECORD) -driver siw -name siw $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) -device siw -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_SLOW=1 \
		-env GOVERBS_DEVICES=siw0,siw1 $(if $(WALK),-env GOVERBS_WALK=$(WALK)) cm.test $(RECORD_TEST) --- conformance.test $(RECORD_TEST)
# rdma-core's programs hang now and then where a client's first message comes while the server's
# kernel accepts: with one processor it does not, unless others may interrupt the server there, as on
# Linux 7.2. What the link has no part in is left out.
.PHONY: boot-siwinterop boot-mixed
boot-siwinterop:
	cd $(BUILD)/$(ARCH) && $(RECORD) -driver siw -name interop $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) -cpus 1 -device siw -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_SLOW=1 -env GOVERBS_DEVICES=siw0,siw1 \
		-with $(SIDEWITH) -file verbs:/bin/verbs -env VERBS=/bin/verbs \
		interop.test $(RECORD_TEST) -test.skip '^TestMixed|^TestPerf(HugePages|Progress|CPU)$$|^TestRpingPersistent$$|^TestDoctor(Text|ClosedNode|MissingNode)$$'
boot-mixed:
	cd $(BUILD)/$(ARCH) && $(RECORD) -driver siw -name mixed $(VMRUN) -kernel $(KERNEL) -arch $(ARCH) -device rxe+siw+mlx5 -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_MIXED=1 \
		-file verbs:/bin/verbs -env VERBS=/bin/verbs interop.test $(RECORD_TEST) -test.run '^TestMixed'
siw: guest hca ## soft iWARP: connections, the verbs, interop, and a guest with rxe, siw and a ConnectX, on KERNEL and ARCH
	rm -f $(RESULTS)/$(ARCH)-$(KERNEL)-siw.*.json
	+$(AT_ONCE) boot-siw boot-siwinterop boot-mixed

.PHONY: boot-race-conformance boot-race-cm
boot-race-cm: SKIP = -test.skip TestManyConns
boot-race-cm: MODULES = -module bonding
boot-race-conformance boot-race-cm:
	cd $(BUILD)/race && $(VMRUN) -kernel $(KERNEL) -mem 2G -env GOVERBS_KERNEL_TEST=1 $(MODULES) $(@:boot-race-%=%).test $(SKIP)
# Static binaries, as everything that runs in a guest.
racevm: deps $(VMRUN) ## the conformance tests and cm's under the race detector, on KERNEL
	for p in test/conformance cm; do \
		CGO_ENABLED=1 go test -race -c -tags netgo,osusergo -ldflags '-linkmode external -extldflags -static' -o $(BUILD)/race/$$(basename $$p).test ./$$p || exit 1; \
	done
	+$(AT_ONCE) boot-race-conformance boot-race-cm

.PHONY: testmatrix
testmatrix:
	go build -trimpath -o $(BUILD)/testmatrix ./test/matrix

matrix: testmatrix ## the kernel tests on all kernels, and a table of what works where
	rm -rf $(RESULTS)
	for m in $(MATRIX); do \
		case $$m in */mlx5-roce) what="mlx5 mlx5cm MODES=roce"; k=$${m%/*};; */mlx5-ib) what="mlx5 MODES=ib"; k=$${m%/*};; */siw) what=siw; k=$${m%/*};; *) what="kernel perf"; k=$$m;; esac; \
		echo "== Linux $${m#*/} on $${m%%/*}"; \
		$(MAKE) --no-print-directory -s $$what ARCH=$${k%%/*} KERNEL=$${k#*/} || echo "== Linux $${m#*/} on $${m%%/*} failed"; \
	done
	@$(BUILD)/testmatrix render -dir $(RESULTS) $(MATRIX); status=$$?; \
	echo "The same as a page: $(RESULTS)/matrix.html"; exit $$status

readme: testmatrix ## check the last matrix in, and render it into the README
	@test ! -e $(RESULTS)/matrix.json || cp $(RESULTS)/matrix.json test/matrix/matrix.json
	$(BUILD)/testmatrix readme

benchreadme: ## render the run of make bench that is checked in into the README; RUN=FILE.json checks another in
	go run ./test/bench readme $(RUN)

generate: deps $(VMRUN) ## generate the ABI packages from the newest headers that Debian has
	set -e; dir=$$($(VMRUN) get -suite sid -update linux-libc-dev); go run ./tools/abigen -include $$dir/usr/include

# The entries of libmlx5's queues are those that the model of a card has fetched, of the queue pairs
# that the program names.
golden: $(VMRUN) hca $(BUILD)/rdmacore-wqes $(BUILD)/rdmacore-queues $(BUILD)/rdmacore-ethernet ## record the commands of rdma-core's programs, and work queue entries, which tests compare with ours
	go build -trimpath -o $(BUILD)/abitrace ./test/abitrace
	set -e; for p in rc_pingpong uc_pingpong ud_pingpong srq_pingpong devinfo; do for m in ioctl write; do \
		case $$m in write) flag=-no-ioctl;; *) flag=;; esac; \
		$(VMRUN) -kernel $(KERNEL) -with $(PACKAGES),dash,coreutils,sed -file $(BUILD)/abitrace:/bin/abitrace \
			-file uverbs/testdata/golden/record.sh:/record.sh sh /record.sh $$p $$flag >$(BUILD)/golden; \
		mv $(BUILD)/golden uverbs/testdata/golden/$${p}_$$m.txt; \
	done; done
	set -e; dir=mmio/mlx5/testdata/golden; \
	$(VMRUN) -kernel $(KERNEL) -device mlx5,mode=ib -with $(PACKAGES),dash,coreutils,grep -file $(BUILD)/abitrace:/bin/abitrace \
		-file $$dir/record.sh:/record.sh sh /record.sh >$(BUILD)/golden; \
	mv $(BUILD)/golden $$dir/commands.txt; \
	$(VMRUN) -kernel $(KERNEL) -device mlx5,mode=ib -hca-verbose -with $(PACKAGES) -file $(BUILD)/rdmacore-wqes:/bin/rdmacore-wqes \
		rdmacore-wqes mlx5_0 >$(BUILD)/golden 2>$(BUILD)/golden.log; \
	read -r qps a b rest <$(BUILD)/golden; test $$qps = qps; \
	{ echo "# WQEs that libmlx5 wrote, as a device read them: the number of the QP and all of its bytes. What was"; \
	echo "# asked for is in golden_test.go, in the same order. The first line has what they contain."; cat $(BUILD)/golden; \
	sed -n "s/^hca: card 0: .*QP \($$a\|$$b\) [A-Z]* WQE .*\[\([0-9a-f]*\)\]$$/\1 \2/p" $(BUILD)/golden.log; } >$$dir/wqes.txt; \
	$(VMRUN) -kernel $(KERNEL) -device mlx5,mode=ib -hca-verbose -with $(PACKAGES) -file $(BUILD)/rdmacore-queues:/bin/rdmacore-queues \
		rdmacore-queues mlx5_0 >$(BUILD)/golden 2>$(BUILD)/golden.log; \
	read -r _ uc _ _ ud _ rc peer _ xrc _ _ _ _ _ lkey rest <$(BUILD)/golden; test -n "$$lkey"; \
	{ echo "# As of wqes.txt, on queues of every type, and with rq before the number of the queue the receives that were"; \
	echo "# taken from it. What was asked for is in golden_queues_test.go, queue by queue in the same order."; cat $(BUILD)/golden; \
	sed -n -e "s/^hca: card 0: .*QP \($$uc\|$$ud\|$$rc\|$$peer\|$$xrc\) [A-Z]* WQE .*\[\([0-9a-f]*\)\]$$/\1 \2/p" \
		-e "s/^hca: card 0: .*RQ \(0x[0-9a-f]*\) takes WQE .*\[\([0-9a-f]*$${lkey#0x}[0-9a-f]*\)\]$$/rq \1 \2/p" $(BUILD)/golden.log; } >$$dir/queues.txt; \
	$(VMRUN) -kernel $(KERNEL) -device mlx5,mode=roce -hca-verbose -with $(PACKAGES),dash,coreutils,grep -file $(BUILD)/abitrace:/bin/abitrace \
		-file $(BUILD)/rdmacore-ethernet:/bin/rdmacore-ethernet -file $$dir/record_ethernet.sh:/record.sh sh /record.sh >$(BUILD)/golden 2>$(BUILD)/golden.log; \
	read -r _ raw _ headers _ ud rest <$(BUILD)/golden; test -n "$$ud"; \
	{ echo "# As of wqes.txt, on Ethernet. What was asked for is in golden_ethernet_test.go, queue by queue in the same order."; \
	sed -n 1p $(BUILD)/golden; \
	sed -n "s/^hca: card 0: .*QP \($$raw\|$$headers\|$$ud\) [A-Z]* WQE .*\[\([0-9a-f]*\)\]$$/\1 \2/p" $(BUILD)/golden.log; } >$$dir/ethernet.txt; \
	sed 1d $(BUILD)/golden >$$dir/commands_ethernet.txt

# The layout tests and the race detector compile C.
deps:
	@command -v gcc >/dev/null || { \
		test $$(id -u) = 0 && command -v apt-get >/dev/null || { echo "gcc is missing: install it (Debian: apt-get install gcc libc6-dev)"; exit 1; }; \
		apt-get update && apt-get install -y gcc libc6-dev; }

clean:
	rm -rf $(BUILD)

help:
	@grep -E '^[a-z0-9]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12
