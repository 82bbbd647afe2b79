int cuprobe_main(void); int cuprobe_main(void){return 0;}
