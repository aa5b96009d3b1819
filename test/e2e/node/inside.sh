# Runs once inside the new namespaces, without effect on the machine.
mount -n --make-rprivate /

# Empty folders for the files that the kubelet, containerd, runc, CNI and mount (without -n) write. With cgroup v2, runc and the kubelet
# reach the machine's systemd.
mount -n --rbind /run /mnt
for dir in /run /var/lib /var/log; do mount -n -t tmpfs -o mode=755 tmpfs "$dir"; done
for dir in ${SHARED_RUN:-}; do
	mkdir "/run/$dir"
	mount -n --rbind "/mnt/$dir" "/run/$dir"
done
umount -n -l /mnt

mount -t proc proc /proc
mount -t sysfs sysfs /sys # of the new network namespace

# cAdvisor requires a clock speed, which user-mode Linux does not show.
if ! grep -q "cpu MHz" /proc/cpuinfo; then
	{ grep . /proc/cpuinfo; printf 'cpu MHz\t\t: 2000.000\n\n'; } >/run/cpuinfo
	mount --bind /run/cpuinfo /proc/cpuinfo
fi

# A private /dev, in which tests create /dev/nvidia0. The node has none of the machine's GPUs.
mount -t tmpfs -o mode=755 dev /mnt
cp -ax /dev/. /mnt
rm -rf /mnt/nvidia*
mount --rbind /dev/pts /mnt/pts
mount --rbind /dev/shm /mnt/shm
mount --move /mnt /dev

if [ "${HIERARCHIES:-}" ]; then mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup; else mount -t cgroup2 cgroup /sys/fs/cgroup; fi
for hierarchy in ${HIERARCHIES:-}; do
	mkdir "/sys/fs/cgroup/${hierarchy%%=*}"
	mount -t cgroup -o "${hierarchy#*=}" cgroup "/sys/fs/cgroup/${hierarchy%%=*}"
done

# The kubelet's device-plugin folder is constant, independent of --root-dir. A bind mount of the work folder makes the sockets reachable
# from outside.
mkdir /var/lib/kubelet
mount --bind "$WORK/root" /var/lib/kubelet

# The kubelet writes these sysctls, which have no namespace: mount writable copies.
for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	mkdir -p "/run/sysctl/${sysctl%/*}"
	cat "/proc/sys/$sysctl" >"/run/sysctl/$sysctl"
	mount --bind "/run/sysctl/$sysctl" "/proc/sys/$sysctl"
done

# Without an entry in /etc/hosts, programs that resolve the node's name wait for name servers, which the node cannot reach.
echo "$NODE" >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost\n%s %s\n' "$IP" "$NODE" >/run/hosts
mount --bind /run/hosts /etc/hosts

mount --make-rshared / # as on a real node: containers may request mount propagation

ip link set lo up
ip addr add "$IP/24" dev eth0
ip link set eth0 up
ip route add default via "$MACHINE_IP"
