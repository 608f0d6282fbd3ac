# The tests and programs of goverbs. On a fresh machine with Go, gcc and apt no step by hand is needed:
# kernels, QEMU and rdma-core's programs are fetched into the user's cache directory. What a suite of tests
# consists of is in the tables of test/run, which can also run each suite by itself:
#
#	go run ./test/run -help
#	go run ./test/run -suite siw -kernel latest

export CGO_ENABLED := 0

BUILD   := $(CURDIR)/.build
KERNEL  ?= 6.1
ARCH    ?= $(shell go env GOARCH)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# More flags of test/run, such as FLAGS="-v" or FLAGS="-j 1".
FLAGS ?=
RUN    = $(BUILD)/run -kernel $(KERNEL) -arch $(ARCH) $(FLAGS)

.PHONY: build conformance quick test testall testlong check unit race soft abi fuzz demo demo-vm bench benchsoft hotpaths matrix readme pictures session generate golden release clean help

# verbs has to stay below 11 MB. The secret of verbs mesh is proven inside Noise, which is 1.6 MB less than TLS;
# build-flags leaves inlining out where speed does not matter, 890 kB less; functions begin at multiples of 8 bytes
# instead of 32, 230 kB less (amd64).
build: ## build verbs, vmrun and the models of cards into .build
	go build $$(cat tools/verbs/build-flags) -ldflags "-s -w -funcalign=8 -X main.version=$(VERSION)" -o $(BUILD)/verbs ./tools/verbs
	go build -C tools/vmrun -o $(BUILD)/vmrun .
	go build -C test/hca -trimpath -o $(BUILD)/hca ./cmd/hca
	go build -C test/efa -trimpath -o $(BUILD)/efa ./cmd/efa

# The same flags keep it below 15 MB.
conformance: ## build the conformance tests as one static program, .build/conformance
	go test -C test/suites -c $$(cat tools/verbs/build-flags) -ldflags "-s -w -funcalign=8 -X github.com/goverbs/goverbs/test/suites/conformance/report.Version=$(VERSION)" -o $(BUILD)/conformance ./conformance

# A binary gets the signals that go run keeps from the program.
.PHONY: $(BUILD)/run
$(BUILD)/run:
	@go build -o $@ ./test/run

quick: $(BUILD)/run ## in about a minute: vet, and unit and software-device tests of what a branch changes
	@$(BUILD)/run $(FLAGS) quick

test: $(BUILD)/run ## what proves most, in minutes: check, unit, each driver on one kernel, rdma-core's programs
	@$(RUN) -suite test

testall: $(BUILD)/run ## the other tests of every day
	@$(RUN) -suite testall

testlong: $(BUILD)/run ## before a release: tests in more ways, with more cards and kernels
	@$(RUN) -suite testlong

check: $(BUILD)/run ## gofmt, vet, tidy modules, the API beside the last tag, staticcheck, other architectures and systems
	@$(RUN) -suite check,staticcheck,cross

unit: $(BUILD)/run ## the tests that need no kernel
	@$(RUN) -suite unit

race: $(BUILD)/run ## the same under the race detector, where goroutines meet
	@$(RUN) -suite race

soft: $(BUILD)/run ## all tests of software devices that need no VM
	@$(RUN) -suite soft,softunit

abi: $(BUILD)/run ## the generated files against the kernel's headers
	@$(RUN) -suite abi

FUZZTIME ?= 20000x
fuzz: $(BUILD)/run ## every fuzz test of every module for FUZZTIME
	@$(RUN) -suite fuzz -fuzztime $(FUZZTIME)

demo: ## two processes on devices in software: a ping-pong, messages, a stream
	@go run ./test/demo

demo-vm: $(BUILD)/run ## ping-pong of a plain program and rdma-core's, in a VM, side by side
	@$(RUN) -suite demo-vm -- $(BENCH)

# BENCH are flags of test/bench or test/bench/soft, such as BENCH="-rows ^send -rounds 9"; without it all is measured.
BENCH ?=
bench: $(BUILD)/run ## ours beside rdma-core's programs, in turn, on KERNEL: a table, JSON and a page
	@$(RUN) -suite bench -- $(BENCH)

benchsoft: $(BUILD)/run ## software devices beside UDP and TCP on this machine, by processor time
	@$(RUN) -suite benchsoft -- $(BENCH)

hotpaths: $(BUILD)/run ## post and poll on ring memory, without a kernel: instructions by function, and the clock
	@$(RUN) -suite hotpaths/functions,hotpaths/clock

matrix: $(BUILD)/run ## the kernel tests on all kernels, and a table of what works where
	@$(BUILD)/run $(FLAGS) matrix

readme: $(BUILD)/run ## check the last matrix in, and write the tables of the README and uverbs/RDMA-CORE.md
	@$(BUILD)/run readme

pictures: ## draw the diagrams of the documentation from the text in test/pictures
	@go run ./test/pictures

session: ## record the terminal session of the README again
	@go build -o $(BUILD)/verbs ./tools/verbs
	@PATH=$(BUILD):$$PATH go run ./test/pictures record

generate: $(BUILD)/run ## generate the ABI packages from the newest headers that Debian has
	@$(RUN) -suite generate

golden: $(BUILD)/run ## record what rdma-core's programs and rxe do, which unit tests compare with ours
	@$(RUN) -suite golden

# The image is an OCI archive; skopeo copy --all oci-archive:FILE docker://... publishes it.
TOOLS   := $(BUILD)/tools
PUBLISH ?=
release: ## programs, archives, checksums, SBOMs and a container of a release into .build/dist, without publishing
	@test -x $(TOOLS)/goreleaser || GOBIN=$(TOOLS) go install github.com/goreleaser/goreleaser/v2@v2.15.0
	@test -x $(TOOLS)/cyclonedx-gomod || GOBIN=$(TOOLS) go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
	GOFLAGS="$$(go env GOFLAGS) $$(tr '\n' ' ' <tools/verbs/build-flags)" PATH="$(TOOLS):$$PATH" \
		goreleaser release --clean $(if $(PUBLISH),,--snapshot --skip=publish)
	mkdir -p $(BUILD)/dist/amd64 $(BUILD)/dist/arm64
	cp $(BUILD)/dist/verbs_linux_amd64_v1/verbs $(BUILD)/dist/amd64
	cp $(BUILD)/dist/verbs_linux_arm64_v8.0/verbs $(BUILD)/dist/arm64
	go run -C test/release . image $(BUILD)/dist $(BUILD)/dist/verbs-image.tar

clean:
	rm -rf $(BUILD)

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12
	@echo "Suites of tests by themselves: go run ./test/run -list"
