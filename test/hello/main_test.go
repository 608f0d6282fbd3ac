package main

func Example() {
	main()
	// Output: 5 bytes: hello
}
