//go:build !unix

package main

func onDisk(string) (uint64, bool) { return 0, false }
